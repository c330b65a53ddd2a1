"""Moves what a run has left in a log directory into a folder there."""

import logging
import os
import re
import secrets
import tempfile

from distmnist.common import cli
from distmnist.logdir import checkpoint_files, checkpoints
from distmnist.storage import paths, urls

_log = logging.getLogger(__name__)

# What the names of a run's files begin with; $ is the end of a name.
_OF_A_RUN = (
  r'checkpoint$|model\.ckpt|best$|history$|lives$|validation$|test$|'
  r'(worker|ps|evaluator)_\d+$|report\.(json|html)$|timeline\.json$|'
  r'train\.(flags|data)$|problem(_before)?\.py$|model\.keras$|events\.out\.tfevents\.'
)


def move_later(logdir, path):
  """Moves the checkpoints later than the one at `path` into a folder."""
  found = checkpoints.list_checkpoints(logdir)
  later = found[: found.index(path)]
  if not later:
    return
  target = _make_folder(logdir, 'passed_over_')
  for each in later:
    # The index goes first: what a move cut short leaves is no checkpoint.
    for name in reversed(checkpoint_files.find_files(each)):
      paths.rename(name, os.path.join(target, os.path.basename(name)))
  _log.info(f'what was passed over is now in {target}')


def move(logdir):
  """Moves an earlier run in `logdir` into a folder there.

  Returns:
    The folder (str), or None if there was no run.

  Raises:
    cli.RunError: the logdir cannot be written.
  """
  names = [
    name for name in paths.list_names(logdir) if re.match(_OF_A_RUN, name)
  ]
  if not names:
    return None
  try:
    target = _make_folder(logdir, 'earlier_')
    for name in names:
      paths.rename(os.path.join(logdir, name), os.path.join(target, name))
  except OSError as error:
    raise not_written(logdir, error) from error
  _log.info(f'the earlier run in {logdir} is now in {target}')
  return target


def _make_folder(logdir, prefix):
  """Returns the path (str) of a new folder in `logdir`."""
  if urls.is_remote(logdir):
    return os.path.join(logdir, f'{prefix}{secrets.token_hex(4)}')
  return tempfile.mkdtemp(prefix=prefix, dir=logdir)


def find_moved(path, logdir, target):
  """Returns where a checkpoint is now.

  Args:
    path: str, the checkpoint.
    logdir: str, where a run was moved aside.
    target: str, where `move` has moved it.
  """
  folder, name = os.path.split(path)
  place = os.path.join(urls.normalize(folder), name)
  root = urls.normalize(logdir) + '/'
  inside = place.removeprefix(root)
  is_inside = place.startswith(root)
  is_moved = is_inside and re.match(_OF_A_RUN, inside.partition('/')[0])
  return os.path.join(target, inside) if is_moved else path


def not_written(logdir, error):
  """Returns the cli.RunError, or cli.PassingError, for an OSError."""
  what = f'--logdir={logdir} cannot be written: {error.strerror}'
  return cli.choose_error(error)(what)
