"""Where a partial checkpoint lies as a whole one, which TensorFlow can read."""

import glob
import logging
import os
import shutil

import tensorflow.compat.v1 as tf

from distmnist.common import partial_names
from distmnist.logdir import whole_copy
from distmnist.storage import scratch

_log = logging.getLogger(__name__)

# What was put together last: its version, folder and path.
_kept = {}


def find_base(path):
  """Returns the name of the base of a checkpoint, a str; None if it is whole.

  Args:
    path: str, on this machine. If it cannot be read, it counts as whole: what
      reads its values will say what is wrong.
  """
  try:
    names = tf.train.load_checkpoint(path).get_variable_to_shape_map()
  except Exception:  # Broken bytes raise errors of many kinds.
    return None
  return partial_names.find_base(names)


def find_whole(path, local, base_path, local_base):
  """Returns where a partial checkpoint lies as a whole one, on this machine.

  It is kept in the scratch folder until another one is asked for or `drop` is
  called: read it at once.

  Args:
    path, base_path: str, of the partial checkpoint and its base.
    local, local_base: str, where they are on this machine.

  Raises:
    whole_copy.PartialError: names what cannot be used, and why.
    cli.RunError: there is no room for it.
  """
  version = _find_version(local), _find_version(local_base)
  if _kept.get('version') != version:
    drop()
    _log.info(f'{path} has the rows touched since {base_path}: reading both')
    folder = scratch.make('whole')
    whole = os.path.join(folder, os.path.basename(path))
    try:
      whole_copy.put_together(local, local_base, whole, base_path)
    except BaseException:
      shutil.rmtree(folder, ignore_errors=True)
      raise
    _kept.update(version=version, folder=folder, path=whole)
  return _kept['path']


def drop():
  """Removes what `find_whole` has put together."""
  if folder := _kept.get('folder'):
    shutil.rmtree(folder, ignore_errors=True)
  _kept.clear()


def _find_version(path):
  """Returns what changes with the files of a checkpoint."""
  found = map(os.stat, sorted(glob.glob(f'{glob.escape(path)}.*')))
  return path, tuple((x.st_size, x.st_mtime_ns) for x in found)
