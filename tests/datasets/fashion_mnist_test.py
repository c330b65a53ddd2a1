import numpy as np
import pytest

from distmnist.datasets import fashion_mnist


@pytest.fixture
def small(monkeypatch, mirror, md5s):
  monkeypatch.setattr(fashion_mnist, 'MIRRORS', (mirror.address,))
  monkeypatch.setattr(fashion_mnist, 'MD5S', md5s)
  return mirror


def test_downloads_into_its_own_folder(small, tmp_path):
  images, labels = fashion_mnist.load(str(tmp_path / 'data'), 'test')
  assert images.shape == (3, 28, 28, 1) and images.dtype == np.uint8
  assert labels.tolist() == [0, 1, 2] and labels.dtype == np.int32
  assert len(list((tmp_path / 'data/fashion_mnist').iterdir())) == 4
