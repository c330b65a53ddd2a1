import hashlib
import os

import numpy as np
import pytest

from distmnist.data import download
from distmnist.datasets import mnist
from tests.support.mirror import names_in, write
from tests.support.paths import REPO

ROOT = REPO


@pytest.fixture
def data_dir(tmp_path):
  return tmp_path / 'data'


@pytest.fixture
def use(monkeypatch, md5s):
  """use(*addresses): makes them the mirrors, of the small data set."""

  def use_mirrors(*addresses):
    monkeypatch.setattr(mnist, 'MIRRORS', addresses)
    monkeypatch.setattr(mnist, 'MD5S', md5s)

  return use_mirrors


def check_small_data_set(data_dir):
  for split, n in (('train', 7), ('test', 3)):
    images, labels = mnist.load(str(data_dir), split)
    assert images.shape == (n, 28, 28, 1) and images.dtype == np.uint8
    assert labels.tolist() == list(range(n)) and labels.dtype == np.int32
    expected = np.arange(n * 784).astype(np.uint8)
    np.testing.assert_array_equal(images.ravel(), expected)


@pytest.mark.slow
@pytest.mark.parametrize('split, n', [('train', 60000), ('test', 10000)])
def test_the_real_files_have_the_published_content(split, n):
  given = os.environ.get('DISTMNIST_DATA_DIR', ROOT.parent / 'shared' / 'data')
  if len(download._find(os.path.join(given, 'mnist'), mnist.MD5S)) < 4:
    pytest.skip('no MNIST: set DISTMNIST_DATA_DIR to a folder that has mnist/')
  images, labels = mnist.load(str(given), split)
  assert images.shape == (n, 28, 28, 1) and images.dtype == np.uint8
  assert labels.shape == (n,) and labels.dtype == np.int32
  header = bytes.fromhex(f'00000803 {n:08x} 0000001c 0000001c')
  expected = {
    'train': 'ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db',
    'test': '0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7',
  }
  digest = hashlib.sha256(header + images.tobytes()).hexdigest()
  assert digest == expected[split]


@pytest.mark.parametrize('place', ['mnist', '.'])
@pytest.mark.parametrize('ending', ['', '.gz'])
def test_files_put_by_hand_are_found(
  use, data_dir, raw_files, gz_files, place, ending
):
  use()
  write(data_dir / place, gz_files if ending else raw_files, ending)
  check_small_data_set(data_dir)


def test_missing_files_are_downloaded_once(use, mirror, data_dir, capfd):
  use(mirror.address)
  check_small_data_set(data_dir)
  gets = [line for line in mirror.lines if line.startswith('GET')]
  assert len(gets) == 4
  folder = data_dir / 'mnist'
  assert names_in(folder) == names_in(mirror.folder)
  assert capfd.readouterr().err.splitlines() == [
    f'downloading mnist (4 files) from {mirror.address} to {folder}'
  ]
