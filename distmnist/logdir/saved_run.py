"""A run as its log directory keeps it: its flags and its checkpoints.

Programs that work on a run that is over, or goes on elsewhere, start from here.
Model and data set are those that the run was started with; flags given on the
command line override them.
"""

import functools
import logging
import os
import sys
import time

from absl import flags

from distmnist.common import cli, command_line, store_check
from distmnist.logdir import checkpoint_files, checkpoints, logdirs, run_flags
from distmnist.storage import urls

FLAGS = flags.FLAGS
_log = logging.getLogger(__name__)

_CHECKPOINT = flags.DEFINE_string(
  'checkpoint',
  None,
  'Which checkpoint: a path, a global step, or "best". By default the latest. '
  'With a path --logdir may be left out.',
)

_ADVICE = 'or name one that has diverged by --checkpoint'


def logdir_from_flags():
  """Returns --logdir, else the folder of the run that --checkpoint is from.

  Raises:
    cli.UsageError: neither names one.
  """
  logdir = logdirs.from_flags()
  if logdir is None and _is_path(_CHECKPOINT.value):
    logdir = os.path.dirname(urls.expand(_CHECKPOINT.value)) or '.'
    # The best checkpoint is kept one level down.
    absolute = logdir if urls.is_remote(logdir) else os.path.abspath(logdir)
    parent = os.path.dirname(absolute)
    if absolute == checkpoints.best_dir(parent):
      logdir = parent
  if logdir is None:
    raise cli.UsageError('--logdir is missing: the directory of a run')
  store_check.check('logdir', logdir, is_written=False)
  return logdir


def take_flags(logdir, timeout_secs=0):
  """Parses the flags of the run, then those of the command line again.

  A checkpoint that was taken out of its run has no flags; then the command line
  must give them all.

  Args:
    logdir: str, from `logdir_from_flags`.
    timeout_secs: float, how long the run may take to begin.

  Raises:
    cli.RunError: there is no run in --logdir.
  """
  deadline = time.monotonic() + timeout_secs
  while True:
    try:
      saved = run_flags.read(logdir)
      break
    except cli.RunError:
      if logdirs.from_flags() is None:
        return
      if time.monotonic() >= deadline:
        raise
    time.sleep(0.2)
  # These are the flags of train; only some of them are known here.
  words = [sys.argv[0], *saved, *sys.argv[1:]]
  try:
    command_line.parse(FLAGS, words, known_only=True)
  except flags.Error as error:
    raise cli.RunError(f'the flags of the run in {logdir}: {error}') from error


def find_checkpoint(logdir, find_divergence=lambda path: None):
  """Returns the path of the checkpoint that --checkpoint asks for.

  If it asks for none in particular, a checkpoint that is not whole or has
  diverged is logged, and the one before it is taken, as a resumed training
  would. One that is asked for may have diverged; that is logged, too.

  Args:
    logdir: str.
    find_divergence: callable, as for `checkpoints.find_fault`.

  Raises:
    cli.RunError: there is none, or it is not whole.
  """
  which = _CHECKPOINT.value
  find_fault = functools.partial(
    checkpoints.find_fault, find_divergence=find_divergence
  )
  if which in (None, 'best'):
    folder = checkpoints.best_dir(logdir) if which else logdir
    path = checkpoints.find_usable(folder, find_fault, _ADVICE)
  elif which.isdigit():
    path = checkpoints.path_of_step(logdir, int(which))
  else:
    path = urls.expand(which)
  if path is None or not checkpoint_files.is_there(path):
    what = 'a checkpoint' if which is None else f'checkpoint {which}'
    where = f'in --logdir={logdir}'
    if _is_path(which):
      where = '(a path has no ending: run/model.ckpt-100)'
    raise cli.RunError(f'{what} was not found {where}')
  if which not in (None, 'best') and (fault := find_fault(path)):
    what, why = fault
    if what == checkpoints.NOT_WHOLE:
      raise cli.RunError(
        f'checkpoint {path} is not whole: {why}; give another one by '
        '--checkpoint'
      )
    _log.info(f'checkpoint {path} {what}: {why}')
  return path


def _is_path(which):
  return bool(which) and which != 'best' and not which.isdigit()
