"""Fashion-MNIST, Zalando's articles of clothing: shaped like MNIST, but harder.

60,000 training and 10,000 test images of 28 x 28, from 10 classes (T-shirt,
trouser, pullover, dress, coat, sandal, shirt, sneaker, bag, ankle boot); H.
Xiao, K. Rasul and R. Vollgraf, 2017. Licence: MIT.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from distmnist.data import download, idx

if TYPE_CHECKING:
  import numpy as np

MIRRORS = (
  'http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/',
  'https://github.com/zalandoresearch/fashion-mnist/raw/master/data/fashion/',
)
MD5S = {
  'train-images-idx3-ubyte': '8d4fb7e6c68d591d4c3dfef9ec88bf0d',
  'train-labels-idx1-ubyte': '25c81989df183df01b3e8a0aad5dffbe',
  't10k-images-idx3-ubyte': 'bef4ecab320f06d8554ea6380940ec79',
  't10k-labels-idx1-ubyte': 'bb300cfdad3c16e7a12a480ee83cd310',
}


def num_classes() -> int:
  """Returns 10."""
  return 10


def image_shape() -> tuple[int, int, int]:
  """Returns height, width, channels."""
  return 28, 28, 1


def prepare(data_dir: str) -> dict[str, str]:
  """Downloads the files that `data_dir` lacks; returns name to path.

  Raises:
    cli.RunError: `data_dir` cannot be written, or no mirror has the files.
  """
  return download.find_or_download('fashion_mnist', data_dir, MIRRORS, MD5S)


def load(data_dir: str, split: str) -> tuple[np.ndarray, np.ndarray]:
  """Loads a split; downloads it if `data_dir` lacks it.

  Args:
    data_dir: a folder; see `download.find_or_download`.
    split: 'train' or 'test'.

  Returns:
    images uint8 [n, 28, 28, 1]; labels int32 [n] in [0, 9].

  Raises:
    cli.RunError: files are missing or malformed.
  """
  return idx.load(prepare(data_dir), split, num_classes())
