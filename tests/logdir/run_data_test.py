"""run_data: images and labels are recognised, and others are told apart."""

import zlib

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from distmnist.data import split as split_lib
from distmnist.logdir import run_data


def make_split(num_images=5, value=7):
  images = np.full([num_images, 2, 2, 1], value, np.uint8)
  return split_lib.Split(images, np.arange(num_images, dtype=np.int32))


def describe(images, labels):
  return run_data.describe('images', split_lib.Split(images, labels))


def test_the_same_images_are_the_same_wherever_they_lie():
  images, labels, _ = make_split()
  first = describe(images, labels)
  assert first.startswith('5 images with checksum ')
  # As a file in Fortran order has them.
  assert describe(np.asfortranarray(images), labels) == first


def test_each_image_and_each_label_counts():
  images, labels, _ = make_split()
  found = {describe(images, labels)}
  images[4, 1, 1] += 1
  found.add(describe(images, labels))
  labels[0] = 9
  found.add(describe(images, labels))
  found.add(describe(images[:4], labels[:4]))
  found.add(describe(images[1:], labels[1:]))
  assert len(found) == 5


@pytest.mark.parametrize(
  'dtype', [bool, np.float32, tf.bfloat16.as_numpy_dtype, 'S3']
)
def test_numbers_of_each_kind_are_its_bytes(dtype):
  images, labels = np.arange(6).reshape(2, 3).astype(dtype), np.arange(2)
  checksum = zlib.crc32(images.tobytes() + labels.tobytes())
  assert describe(images, labels).endswith(f'{checksum:08x}')
  assert describe(images[:, :0], labels) != describe(images, labels)


def test_how_many_are_for_validation_is_part_of_it():
  images, labels, _ = make_split()
  whole = split_lib.Split(images, labels)
  cut = whole.slice(2, 5), whole.slice(0, 2)
  assert run_data.describe('images', *cut) != describe(images, labels)


def test_what_is_kept_is_read_again(tmp_path):
  assert run_data.read(str(tmp_path)) is None
  run_data.write(str(tmp_path), '5 images')
  assert run_data.read(str(tmp_path)) == '5 images'
  (tmp_path / 'distmnist-files' / 'train.data').write_bytes(b'\xff')
  assert run_data.read(str(tmp_path)) is None


def test_text_counts_too():
  labels = np.arange(2)
  found = {
    describe(np.array(texts, object), labels)
    for texts in ([b'a', b'bc'], [b'ab', b'c'], [b'a', b'bd'])
  }
  assert len(found) == 3
