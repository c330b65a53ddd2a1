"""run_data: images and labels are known again, and others are told apart."""

import numpy as np

from distmnist.logdir import run_data


def make_split(num_images=5, value=7):
  images = np.full([num_images, 2, 2, 1], value, np.uint8)
  return images, np.arange(num_images, dtype=np.int32)


def test_the_same_images_are_the_same_wherever_they_lie():
  images, labels = make_split()
  first = run_data.describe((images, labels))
  assert first.startswith('5 images with checksum ')
  # As a file in the order of Fortran has them.
  assert run_data.describe((np.asfortranarray(images), labels)) == first


def test_each_image_and_each_label_counts():
  images, labels = make_split()
  found = {run_data.describe((images, labels))}
  images[4, 1, 1] += 1
  found.add(run_data.describe((images, labels)))
  labels[0] = 9
  found.add(run_data.describe((images, labels)))
  found.add(run_data.describe((images[:4], labels[:4])))
  found.add(run_data.describe((images[1:], labels[1:])))
  assert len(found) == 5


def test_how_many_are_for_validation_is_part_of_it():
  images, labels = make_split()
  cut = (images[2:], labels[2:]), (images[:2], labels[:2])
  assert run_data.describe(*cut) != run_data.describe((images, labels))


def test_what_is_kept_is_read_again(tmp_path):
  assert run_data.read(str(tmp_path)) is None
  run_data.write(str(tmp_path), '5 images')
  assert run_data.read(str(tmp_path)) == '5 images'
  (tmp_path / 'train.data').write_bytes(b'\xff')
  assert run_data.read(str(tmp_path)) is None
