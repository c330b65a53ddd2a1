"""Where a partial checkpoint lies as a whole one, which TensorFlow can read."""

import logging
import os

from distmnist.common import partial_names
from distmnist.logdir import cached_copy, checkpoint_reads, whole_copy

_log = logging.getLogger(__name__)

# What was put together last.
_whole = cached_copy.CachedCopy()


def find_base(path):
  """Returns the name of the base of a checkpoint, a str; None if it is whole.

  Args:
    path: str, on this machine. If it is damaged, it counts as whole: what
      reads its values will say what is wrong.

  Raises:
    cli.PassingError: it cannot be read.
  """

  def read():
    names = checkpoint_reads.open_reader(path).get_variable_to_shape_map()
    return partial_names.find_base(names)

  try:
    return checkpoint_reads.trying(path, read)
  except checkpoint_reads.DamageError:
    return None


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

  def write(target):
    _log.info(f'{path} has the rows touched since {base_path}: reading both')
    whole_copy.put_together(local, local_base, target, base_path)

  version = tuple(map(cached_copy.find_version, (local, local_base)))
  return _whole.find(version, os.path.basename(path), write)


def drop():
  """Removes what `find_whole` has put together."""
  _whole.drop()
