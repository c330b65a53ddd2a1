"""The files of a checkpoint, which may be in a store or partial.

TensorFlow reads only whole checkpoints on this machine.
"""

import contextlib
import logging
import os

from distmnist.common import cli
from distmnist.logdir import (
  cached_copy,
  checkpoint_reads,
  grown_copy,
  partial_checkpoints,
)
from distmnist.storage import copies, paths, scratch, stores, urls

_log = logging.getLogger(__name__)

# The last copy with larger tables.
_grown = cached_copy.CachedCopy()


def is_there(path):
  """Whether there is a checkpoint at `path`, whole or not."""
  return paths.exists(f'{path}.index')


def localize(path):
  """Returns a path where TensorFlow can read the checkpoint at `path`.

  A checkpoint in a store is copied here, and a partial one is put together with
  its base. What is made is kept for a while: read it at once.

  Raises:
    whole_copy.PartialError: it is partial, and it or its base is
      damaged.
    cli.PassingError: it cannot be read or copied.
  """
  local = _fetch(path)
  base = partial_checkpoints.find_base(local)
  if base is None:
    return local
  base_path = os.path.join(os.path.dirname(path), base)
  local_base = _fetch(base_path)
  return checkpoint_reads.trying(
    path,
    lambda: partial_checkpoints.find_whole(path, local, base_path, local_base),
  )


def localize_grown(path, growths):
  """Does as `localize`, with larger tables than the checkpoint at `path` has.

  Args:
    path: str.
    growths: list of grown_copy.Growth, of each table that is larger.
  """
  local = localize(path)
  if not growths:
    return local

  def write(target):
    for growth in growths:
      _log.info(
        f'the table {growth.table!r} gets {growth.num_blocks * growth.after:,} '
        f'rows instead of the {growth.num_blocks * growth.before:,} in {path}'
      )
    grown_copy.write(local, target, growths)

  version = cached_copy.find_version(local), growths
  return checkpoint_reads.trying(
    path, lambda: _grown.find(version, os.path.basename(path), write)
  )


def _fetch(path):
  try:
    return copies.fetch_prefix(path)
  except OSError as error:
    raise cli.choose_error(error)(
      f'checkpoint {path} cannot be read: {error.strerror}'
    ) from error


def drop_copies():
  """Removes the copies that were made here, which may be large."""
  partial_checkpoints.drop()
  _grown.drop()


def find_base(path):
  """Returns the path (str) of a partial checkpoint's base; None if whole.

  Raises:
    OSError: a store does not answer.
  """
  local, folder = path, None
  if urls.is_remote(path):
    folder = scratch.make('index')  # It has the names, and no values.
    local = os.path.join(folder, os.path.basename(path))
    with contextlib.suppress(FileNotFoundError):
      stores.download(f'{path}.index', f'{local}.index')
  base = partial_checkpoints.find_base(local)
  if folder:
    paths.remove_folder(folder)
  return base and os.path.join(os.path.dirname(path), base)


def read(path, do):
  """Returns do(tf.train.CheckpointReader of the checkpoint at `path`).

  Raises:
    checkpoint_reads.DamageError: it is not as it was written.
    cli.PassingError: it cannot be read.
  """
  return checkpoint_reads.trying(path, lambda: do(open_reader(path)))


def open_reader(path):
  """Returns the tf.train.CheckpointReader of the checkpoint at `path`.

  For those who call it and its methods within checkpoint_reads.trying.
  """
  return checkpoint_reads.open_reader(localize(path))


def read_shapes(path):
  """Returns {name: shape, a list}; raises as `read` does."""
  return read(path, lambda reader: reader.get_variable_to_shape_map())


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
