"""The files of a checkpoint, which may be in a store.

TensorFlow reads only files on this machine.
"""

import os

import tensorflow.compat.v1 as tf

from distmnist.common import cli
from distmnist.storage import copies, paths


def is_there(path):
  """Whether there is a checkpoint at `path`, whole or not."""
  return paths.exists(f'{path}.index')


def localize(path):
  """Returns a path where TensorFlow can read the checkpoint at `path`.

  A checkpoint in a store is copied here, and kept for a while: read it at once.

  Raises:
    cli.RunError: it cannot be copied.
  """
  try:
    return copies.fetch_prefix(path)
  except OSError as error:
    raise cli.RunError(
      f'checkpoint {path} cannot be read: {error.strerror}'
    ) from error


def open_reader(path):
  """Returns the tf.train.CheckpointReader of the checkpoint at `path`."""
  return tf.train.load_checkpoint(localize(path))


def find_files(path):
  """Returns the paths (list of str) of a checkpoint's files, the index last."""
  folder, name = os.path.split(path)
  names = [n for n in paths.list_names(folder) if n.startswith(f'{name}.')]
  return [os.path.join(folder, n) for n in sorted(names, key=_is_index_last)]


def remove(path):
  """Removes a checkpoint, its index first; raises OSError."""
  for name in reversed(find_files(path)):
    paths.remove(name)


def is_index(name):
  """Whether a file of this name shows that the checkpoint exists."""
  return name.endswith('.index')


def _is_index_last(name):
  return is_index(name), name
