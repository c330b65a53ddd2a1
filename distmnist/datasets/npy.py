"""A user's own images, as NumPy files in --data_dir.

  train_images.npy, test_images.npy   uint8 [n, height, width, channels]
  train_labels.npy, test_labels.npy   integers [n], from 0

Unless shape and classes are MNIST's, give --npy_image_shape and --npy_classes.
Pickled objects in a file are not loaded.
"""

from __future__ import annotations

import os

import numpy as np
from absl import flags

from distmnist.common import cli
from distmnist.storage import copies, paths

_IMAGE_SHAPE = flags.DEFINE_list(
  'npy_image_shape',
  ['28', '28', '1'],
  'Height, width and channels of the images of --dataset=npy.',
)
_CLASSES = flags.DEFINE_integer(
  'npy_classes',
  10,
  'Number of classes of --dataset=npy: labels are the integers from 0 to this '
  'minus 1.',
  lower_bound=2,
)

flags.register_validator(
  'npy_image_shape',
  lambda words: (
    len(words) == 3
    and all(w.isascii() and w.isdigit() and int(w) for w in words)
  ),
  'expected height, width, channels, such as 28,28,1',
)


def num_classes() -> int:
  """Returns --npy_classes."""
  return _CLASSES.value


def image_shape() -> tuple[int, int, int]:
  """Returns height, width, channels, from --npy_image_shape."""
  height, width, channels = map(int, _IMAGE_SHAPE.value)
  return height, width, channels


def prepare(data_dir: str) -> None:
  """Checks that `data_dir` has the files; raises cli.RunError."""
  for split in ('train', 'test'):
    for kind in ('images', 'labels'):
      path = os.path.join(data_dir, f'{split}_{kind}.npy')
      if not _is_there(path):
        raise cli.RunError(
          f'{path} was not found: --dataset=npy reads train_images.npy,'
          ' train_labels.npy, test_images.npy and test_labels.npy of --data_dir'
        )


def _is_there(path: str) -> bool:
  try:
    return paths.exists(path)
  except OSError as error:
    raise cli.choose_error(error, cli.UsageError)(
      f'{path} cannot be read: {error.strerror}; see --data_dir'
    ) from error


def load(data_dir: str, split: str) -> tuple[np.ndarray, np.ndarray]:
  """Loads a split.

  Args:
    data_dir: a folder.
    split: 'train' or 'test'.

  Returns:
    images uint8 [n, height, width, channels]; labels int32 [n].

  Raises:
    cli.RunError: files are missing or malformed.
  """
  images_path = os.path.join(data_dir, f'{split}_images.npy')
  labels_path = os.path.join(data_dir, f'{split}_labels.npy')
  images, labels = _read(images_path), _read(labels_path)
  shape = image_shape()
  if images.dtype != np.uint8 or images.shape[1:] != shape or not len(images):
    raise _bad(
      images_path,
      f'{images.dtype} {list(images.shape)}',
      f'uint8 [n, {", ".join(map(str, shape))}], as --npy_image_shape says',
    )
  if labels.dtype.kind not in 'iu' or labels.shape != images.shape[:1]:
    raise _bad(
      labels_path,
      f'{labels.dtype} {list(labels.shape)}',
      f'integers [{len(images)}], one for each image',
    )
  wrong = (labels < 0) | (labels >= num_classes())
  if wrong.any():
    at = int(np.argmax(wrong))
    raise _bad(
      labels_path,
      f'label {labels[at]} at index {at}',
      f'0 to {num_classes() - 1}, as --npy_classes says',
    )
  return images, labels.astype(np.int32)


def _read(path: str) -> np.ndarray:
  try:
    with open(copies.fetch_file(path), 'rb') as file:
      return np.lib.format.read_array(file, allow_pickle=False)
  except FileNotFoundError as error:
    raise cli.RunError(f'{path} was not found: see --data_dir') from error
  except OSError as error:
    kind = cli.choose_error(error)
    raise kind(f'cannot read {path}: {error.strerror}') from error
  except (ValueError, EOFError) as error:
    reason = str(error)
    if 'magic string' in reason:
      reason = 'it is not a file of np.save'
    raise cli.RunError(f'cannot read {path}: {reason}') from error


def _bad(path: str, found: str, expected: str) -> cli.RunError:
  return cli.RunError(f'{path}: found {found}, expected {expected}')
