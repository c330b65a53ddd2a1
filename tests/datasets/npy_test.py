import numpy as np
import pytest

from distmnist.common import cli
from distmnist.datasets import npy


@pytest.fixture
def folder(tmp_path):
  rng = np.random.default_rng(0)
  for split, n in (('train', 5), ('test', 3)):
    images = rng.integers(0, 256, (n, 4, 3, 2), np.uint8)
    np.save(tmp_path / f'{split}_images.npy', images)
    np.save(tmp_path / f'{split}_labels.npy', np.arange(n))
  return tmp_path


@pytest.fixture(autouse=True)
def shape(set_flags):
  set_flags('--npy_image_shape=4,3,2', '--npy_classes=5')


def test_images_and_labels_are_those_of_the_files(folder):
  npy.prepare(str(folder))
  images, labels = npy.load(str(folder), 'test')
  assert images.dtype == np.uint8
  assert np.array_equal(images, np.load(folder / 'test_images.npy'))
  assert labels.dtype == np.int32
  assert labels.tolist() == [0, 1, 2]
  assert npy.image_shape() == (4, 3, 2)
  assert npy.num_classes() == 5


@pytest.mark.parametrize(
  ('name', 'array', 'words'),
  [
    ('images', np.zeros((5, 4, 3, 2)), r'found float64 \[5, 4, 3, 2\]'),
    ('images', np.zeros((5, 4, 3), np.uint8), r'expected uint8 \[n, 4, 3, 2\]'),
    ('images', np.zeros((0, 4, 3, 2), np.uint8), r'found uint8 \[0, 4, 3, 2\]'),
    ('labels', np.zeros(4, int), r'found int64 \[4\], expected integers \[5\]'),
    ('labels', np.zeros(5), r'found float64 \[5\]'),
    (
      'labels',
      np.array([0, 1, 5, 0, 0]),
      'label 5 at index 2, expected 0 to 4',
    ),
    ('labels', np.array([0, -1, 0, 0, 0]), 'label -1 at index 1'),
    ('labels', np.array([None] * 5), 'Object arrays cannot be loaded'),
  ],
)
def test_what_does_not_fit_is_named(folder, name, array, words):
  np.save(folder / f'train_{name}.npy', array)
  with pytest.raises(cli.RunError, match=words) as caught:
    npy.load(str(folder), 'train')
  assert f'train_{name}.npy' in str(caught.value)


def test_a_torn_file_is_named(folder):
  path = folder / 'train_images.npy'
  path.write_bytes(path.read_bytes()[:-1])
  with pytest.raises(cli.RunError, match='cannot read .*train_images.npy'):
    npy.load(str(folder), 'train')


def test_a_missing_file_is_named(folder):
  (folder / 'test_labels.npy').unlink()
  with pytest.raises(cli.RunError, match='test_labels.npy was not found'):
    npy.prepare(str(folder))
  with pytest.raises(cli.RunError, match='test_labels.npy was not found'):
    npy.load(str(folder), 'test')


@pytest.mark.parametrize('given', ['28,28', '28,28,0', 'a,b,c', ''])
def test_a_shape_has_three_numbers(set_flags, given):
  with pytest.raises(Exception, match='expected height, width, channels'):
    set_flags(f'--npy_image_shape={given}')
