"""Reads IDX files, the format of MNIST and of the data sets modelled on it.

A file is a big-endian header and then the values, row-major:
  0, 0, type of the values (8 is uint8), number of dimensions: one byte each
  the dimensions: 4 bytes each
It may be gzipped; its first bytes tell, whatever its name says.
"""

import math
import os
import struct
import zlib

import numpy as np

from distmnist.common import cli

# No data set comes near this: a larger file is something else.
MAX_UNPACKED_BYTES = 1 << 31
_GZIP_BITS = 31  # The largest window (15), with the header of gzip (16).
_UINT8 = 0x08
_HEIGHT_WIDTH = (28, 28)
_PREFIXES = {'train': 'train', 'test': 't10k'}


class FileError(cli.RunError):
  """A file that cannot be used; the advice is for the files of a data set.

  Attributes:
    problem: str, what is wrong, without the advice.
  """

  def __init__(self, problem, advice):
    super().__init__(f'{problem}: {advice}')
    self.problem = problem


class PassingFileError(FileError, cli.PassingError):
  """A file that cannot be read now."""


def load(name, files, split, num_classes):
  """Reads the images and labels of a split.

  Args:
    name: str, of the data set.
    files: dict from file name, as in MNIST, to path.
    split: 'train' or 'test'.
    num_classes: int, labels are below it.

  Returns:
    images uint8 [n, 28, 28, 1]; labels int32 [n] in [0, num_classes - 1].

  Raises:
    FileError: a file cannot be read or is not what it should be.
  """
  prefix = _PREFIXES[split]
  images_path = files[f'{prefix}-images-idx3-ubyte']
  labels_path = files[f'{prefix}-labels-idx1-ubyte']
  images = read(images_path, num_dims=3)
  if images.shape[1:] != _HEIGHT_WIDTH:
    found = ' x '.join(str(size) for size in images.shape[1:])
    raise _bad(images_path, f'images of {found}', '28 x 28')
  labels = read_labels(labels_path, len(images), images_path, num_classes)
  return images[..., np.newaxis], labels


def read_labels(path, num_images, images_path, num_classes):
  """Returns the labels of `num_images` images, int32 in [0, num_classes - 1].

  Args:
    path: str.
    num_images: int.
    images_path: str, where the images are, for people.
    num_classes: int, labels are below it.

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
      path,
      f'label {labels[at]} at index {at}',
      f'0 to {num_classes - 1}',
    )
  return labels.astype(np.int32)


def read(path, num_dims):
  """Returns the values of an IDX file, uint8 with `num_dims` dimensions.

  Raises:
    FileError: the file cannot be read, is not a whole IDX file, has another
      type of values or other dimensions, or has no values.
  """
  header = 4 + 4 * num_dims
  content = read_content(path, lambda start: _compute_size(start, num_dims))
  if len(content) < 4:
    raise _bad(path, f'{len(content)} bytes', 'an IDX header')
  magic = struct.unpack('>I', content[:4])[0]
  expected = _UINT8 << 8 | num_dims
  if magic != expected:
    raise _bad(
      path,
      f'magic number 0x{magic:08x}',
      f'0x{expected:08x} (uint8, {num_dims} dimensions)',
    )
  if len(content) < header:
    raise _bad(path, f'{len(content)} bytes', f'a header of {header}')
  shape = struct.unpack(f'>{num_dims}I', content[4:header])
  # Not NumPy's product, which overflows silently.
  size = header + math.prod(shape)
  if size == header:
    raise _bad(path, f'dimensions {shape}', 'at least one value')
  if len(content) != size:
    what = 'truncated' if len(content) < size else 'trailing bytes'
    raise _bad(
      path,
      f'{what}: {len(content)} bytes',
      f'{size} for dimensions {shape}',
    )
  return np.frombuffer(content, np.uint8, offset=header).reshape(shape)


def _compute_size(start, num_dims):
  """Returns the size in bytes (int) that an IDX file's first bytes imply."""
  start = start[: 4 + 4 * num_dims]
  if len(start) < 4 + 4 * num_dims:
    return len(start)
  return len(start) + math.prod(struct.unpack(f'>{num_dims}I', start[4:]))


def read_content(path, compute_size=lambda start: MAX_UNPACKED_BYTES):
  """Returns the bytes of a file, unpacked if it is gzipped.

  Args:
    path: str.
    compute_size: callable(bytes, the first 64 unpacked or fewer) -> int, how
      long it may be when unpacked: 10 MB of gzip may hold 10 GB.

  Raises:
    FileError: it cannot be read, is not a whole gzip, or unpacks to more.
  """
  try:
    with open(path, 'rb') as file:
      content = file.read()
  except OSError as error:
    raise cli.choose_error(error, FileError, PassingFileError)(
      f'cannot read {path}: {error.strerror}',
      'make it readable, or point --data_dir elsewhere',
    ) from error
  if content[:2] != b'\x1f\x8b':
    return content
  try:
    start = _unpack(content, 64)
    max_bytes = min(compute_size(start), MAX_UNPACKED_BYTES)
    # One byte more is enough to tell that there is more.
    unpacked = _unpack(content, max_bytes + 1)
  except (EOFError, zlib.error) as error:
    raise _bad(path, f'corrupt gzip ({error})', 'a whole one') from error
  if len(unpacked) > max_bytes:
    raise _bad(path, f'a gzip of more than {max_bytes} bytes', 'no more')
  return unpacked


def _unpack(content, max_bytes):
  """Returns the first `max_bytes` bytes of a gzip, or all, and checks them.

  Raises:
    EOFError, zlib.error: it is not whole.
  """
  parts = []
  # It may have several members, with zeros after the last.
  while content and max_bytes:
    member = zlib.decompressobj(_GZIP_BITS)
    parts.append(member.decompress(content, max_bytes))
    max_bytes -= len(parts[-1])
    if max_bytes and not member.eof:
      raise EOFError('it ends before its end marker')
    content = member.unused_data.lstrip(b'\0')
  return b''.join(parts)


def _bad(path, found, expected):
  name = os.path.basename(path)
  return FileError(
    f'{path}: found {found}, expected {expected}',
    f'delete {name} so that it is downloaded again, or point --data_dir '
    'elsewhere',
  )
