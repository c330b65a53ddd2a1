import gzip
import struct

import numpy as np
import pytest

from distmnist.data import idx

IMAGES = np.arange(4 * 784, dtype=np.uint8).reshape(4, 28, 28)
LABELS = np.array([3, 0, 9, 1], np.uint8)


def pack(values, magic=None):
  magic = 0x800 | values.ndim if magic is None else magic
  return struct.pack(f'>I{values.ndim}I', magic, *values.shape) + bytes(values)


@pytest.fixture
def load(tmp_path):
  """load(images, labels), the bytes of two files -> idx.load of them."""
  good_images, good_labels = pack(IMAGES), pack(LABELS)

  def load_files(images=good_images, labels=good_labels):
    files = {
      'train-images-idx3-ubyte': tmp_path / 'images.gz',
      'train-labels-idx1-ubyte': tmp_path / 'labels',
    }
    for path, content in zip(files.values(), (images, labels), strict=True):
      path.write_bytes(content)
    files = {name: str(path) for name, path in files.items()}
    return idx.load(files, 'train', 10)

  return load_files


def check_refused(load, path, found, **contents):
  """Checks that one line names the file, what it has, and what to do."""
  with pytest.raises(idx.FileError) as caught:
    load(**contents)
  message = str(caught.value)
  assert message.startswith(f'{path}: found {found}')
  assert '--data_dir' in message and '\n' not in message


@pytest.mark.parametrize('pack_images', [bytes, gzip.compress])
@pytest.mark.parametrize('pack_labels', [bytes, gzip.compress])
def test_content_not_name_tells_gzip_from_raw(load, pack_images, pack_labels):
  images, labels = load(pack_images(pack(IMAGES)), pack_labels(pack(LABELS)))
  assert images.dtype == np.uint8 and labels.dtype == np.int32
  np.testing.assert_array_equal(images, IMAGES[..., np.newaxis])
  np.testing.assert_array_equal(labels, LABELS)


@pytest.mark.parametrize(
  'content, found',
  [
    (b'', 'no byte'),
    (b'<html>', 'magic number 0x3c68746d'),
    (pack(IMAGES, magic=0xD03), 'magic number 0x00000d03'),
    (pack(LABELS), 'magic number 0x00000801'),
    (pack(IMAGES)[:15], '15 bytes'),
    (pack(IMAGES)[:-1], 'truncated: 3151 bytes'),
    (pack(IMAGES) + b'!', 'trailing bytes: 3153 bytes'),
    (struct.pack('>4I', 0x803, 2**31, 2**31, 4), 'truncated: 16 bytes'),
    (pack(IMAGES[:0]), 'dimensions (0, 28, 28)'),
    (pack(IMAGES[:, :, :27]), 'images of 28 x 27'),
  ],
)
def test_an_image_file_that_is_none_is_refused(load, tmp_path, content, found):
  check_refused(load, tmp_path / 'images.gz', found, images=content)


@pytest.mark.parametrize('damage', ['cut', 'flipped', 'trailing', 'header'])
def test_a_corrupt_gzip_is_refused(load, tmp_path, damage):
  content = gzip.compress(pack(IMAGES))
  middle = len(content) // 2
  content = {
    'cut': content[:middle],
    'flipped': content[:-8] + bytes(4) + content[-4:],
    'trailing': content + b'junk',
    'header': content[:2] + b'\xff' + content[3:],
  }[damage]
  path = tmp_path / 'images.gz'
  check_refused(load, path, 'corrupt gzip', images=content)


def test_as_many_labels_as_images_are_expected(load, tmp_path):
  labels = pack(LABELS[:3])
  check_refused(load, tmp_path / 'labels', '3 labels', labels=labels)


def test_a_label_out_of_range_is_named(load, tmp_path):
  labels = pack(np.array([3, 0, 10, 255], np.uint8))
  check_refused(load, tmp_path / 'labels', 'label 10 at index 2', labels=labels)


def test_a_file_that_cannot_be_opened_is_refused(tmp_path):
  with pytest.raises(idx.FileError, match=f'^cannot read {tmp_path}: .+'):
    idx.read(str(tmp_path), num_dims=1)


def test_a_gzip_may_have_several_members(tmp_path):
  content = pack(IMAGES)
  path = tmp_path / 'images.gz'
  path.write_bytes(gzip.compress(content[:9]) + gzip.compress(content[9:]))
  np.testing.assert_array_equal(idx.read(str(path), 3), IMAGES)
