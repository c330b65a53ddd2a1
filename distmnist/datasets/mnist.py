"""MNIST, the handwritten digits of Y. LeCun, C. Cortes and C. Burges.

60,000 training and 10,000 test images of 28 x 28, from 10 classes. Licence:
CC BY-SA 3.0. Other IDX files of this shape are accepted too, under the same
names.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from distmnist.data import download, idx

if TYPE_CHECKING:
  import numpy as np

MIRRORS = (
  'https://ossci-datasets.s3.amazonaws.com/mnist/',
  'https://storage.googleapis.com/cvdf-datasets/mnist/',
)
MD5S = {
  'train-images-idx3-ubyte': 'f68b3c2dcbeaaa9fbdd348bbdeb94873',
  'train-labels-idx1-ubyte': 'd53e105ee54ea40749a09fcbcd1e9432',
  't10k-images-idx3-ubyte': '9fb629c4189551a2d022fa330f9573f3',
  't10k-labels-idx1-ubyte': 'ec29112dd5afa0611ce80d1b7f02629c',
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
  return download.find_or_download('mnist', data_dir, MIRRORS, MD5S)


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
