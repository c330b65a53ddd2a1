"""Reads IDX files, the format of MNIST and of the data sets modelled on it.

A file is a big-endian header and then the values, row-major:
  0, 0, type of the values (8 is uint8), number of dimensions: one byte each
  the dimensions: 4 bytes each
It may be gzipped; its first bytes tell, whatever its name says.
"""

from __future__ import annotations

import gzip
import math
import os
import zlib
from collections.abc import Mapping

import numpy as np

from distmnist.common import cli

_UINT8 = 0x08
_PREFIXES = {'train': 'train', 'test': 't10k'}


class FileError(cli.RunError):
  """A file that cannot be used; the advice is for the files of a data set.

  Attributes:
    problem: what is wrong, without the advice.
  """

  def __init__(self, problem: str, advice: str) -> None:
    super().__init__(f'{problem}: {advice}')
    self.problem = problem


class PassingFileError(FileError, cli.PassingError):
  """A file that cannot be read now."""


def load(
  files: Mapping[str, str], split: str, num_classes: int
) -> tuple[np.ndarray, np.ndarray]:
  """Reads the images and labels of a split, 'train' or 'test'.

  Args:
    files: from file name, as in MNIST, to path.
    split: 'train' or 'test'.
    num_classes: labels are below it.

  Returns:
    images uint8 [n, 28, 28, 1]; labels int32 [n] in [0, num_classes - 1].

  Raises:
    FileError: a file cannot be read or is not what it should be.
  """
  images_path = files[f'{_PREFIXES[split]}-images-idx3-ubyte']
  labels_path = files[f'{_PREFIXES[split]}-labels-idx1-ubyte']
  images = read(images_path, num_dims=3)
  if images.shape[1:] != (28, 28):
    found = ' x '.join(str(size) for size in images.shape[1:])
    raise _bad(images_path, f'images of {found}', '28 x 28')
  labels = read_labels(labels_path, len(images), images_path, num_classes)
  return images[..., np.newaxis], labels


def read_labels(
  path: str, num_images: int, images_path: str, num_classes: int
) -> np.ndarray:
  """Returns the labels of `num_images` images, int32 in [0, num_classes - 1].

  Raises:
    FileError: see `read`; or there are too many or too few, or one is out of
      range.
  """
  labels = read(path, num_dims=1)
  if len(labels) != num_images:
    raise _bad(
      path,
      f'{len(labels)} labels',
      f'{num_images}, one for each image of {images_path}',
    )
  if labels.max() >= num_classes:
    at = int(np.argmax(labels >= num_classes))
    raise _bad(
      path, f'label {labels[at]} at index {at}', f'0 to {num_classes - 1}'
    )
  return labels.astype(np.int32)


def read(path: str, num_dims: int) -> np.ndarray:
  """Returns the values of an IDX file, uint8 with `num_dims` dimensions.

  Raises:
    FileError: the file cannot be read, is not a whole IDX file, has another
      type of values or other dimensions, or has no values.
  """
  content, size = read_content(path), 4 + 4 * num_dims
  magic = bytes([0, 0, _UINT8, num_dims])
  if content[:4] != magic:
    found = f'magic number 0x{content[:4].hex()}' if content else 'no byte'
    raise _bad(path, found, f'0x{magic.hex()} (uint8, {num_dims} dimensions)')
  if len(content) < size:
    raise _bad(path, f'{len(content)} bytes', f'a header of {size}')
  shape = tuple(np.frombuffer(content, '>u4', num_dims, 4).tolist())
  if not math.prod(shape):
    raise _bad(path, f'dimensions {shape}', 'at least one value')
  size += math.prod(shape)
  if len(content) != size:
    what = 'truncated' if len(content) < size else 'trailing bytes'
    raise _bad(
      path, f'{what}: {len(content)} bytes', f'{size} for dimensions {shape}'
    )
  return np.frombuffer(content, np.uint8, offset=4 + 4 * num_dims).reshape(
    shape
  )


def read_content(path: str) -> bytes:
  """Returns the bytes of a file, unpacked if it is gzipped.

  Raises:
    FileError: it cannot be read, or is not a whole gzip.
  """
  try:
    with open(path, 'rb') as file:
      content = file.read()
  except OSError as error:
    raise cli.choose_error(error, FileError, PassingFileError)(
      f'cannot read {path}: {error.strerror}',
      'make it readable, or point --data_dir elsewhere',
    ) from error
  try:
    is_packed = content.startswith(b'\x1f\x8b')
    return gzip.decompress(content) if is_packed else content
  except (gzip.BadGzipFile, EOFError, zlib.error) as error:
    raise _bad(path, f'corrupt gzip ({error})', 'a whole one') from error


def _bad(path: str, found: str, expected: str) -> FileError:
  return FileError(
    f'{path}: found {found}, expected {expected}',
    f'delete {os.path.basename(path)} so that it is downloaded again, or point '
    '--data_dir elsewhere',
  )
