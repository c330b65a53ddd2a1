"""A run as its log directory keeps it: its flags and its checkpoints.

Programs that work on a run that is over, or goes on elsewhere, start from here.
Model and data set are those that the run was started with; flags given on the
command line override them.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import sys
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

import tensorflow.compat.v1 as tf
from absl import flags

from distmnist.common import cli, command_line, files, registry, store_check
from distmnist.common.names import PROBLEMS
from distmnist.logdir import checkpoint_reader, checkpoints, logdirs, run_flags
from distmnist.storage import paths, urls

FLAGS = flags.FLAGS
_log = logging.getLogger(__name__)
_Result = TypeVar('_Result')

_CHECKPOINT = flags.DEFINE_string(
  'checkpoint',
  None,
  'Which checkpoint: a path, a global step, or "best". By default the latest. '
  'With a path --logdir may be left out.',
)

_ADVICE = 'or name one that has diverged by --checkpoint'


def logdir_from_flags() -> str:
  """Returns --logdir, else the folder of the run that --checkpoint is from.

  Raises:
    cli.UsageError: neither names one.
  """
  logdir = _find_logdir(logdirs.from_flags(), _CHECKPOINT.value)
  if logdir is None:
    raise cli.UsageError('--logdir is missing: the directory of a run')
  store_check.check('logdir', logdir, is_written=False)
  return logdir


def _find_logdir(logdir: str | None, checkpoint: str | None) -> str | None:
  """Returns `logdir`, or else the folder of a checkpoint's run, or None."""
  if logdir is None and checkpoint and _is_path(checkpoint):
    return find_folder(urls.expand(checkpoint))
  return logdir


def find_folder(path: str) -> str:
  """Returns the log directory in which a checkpoint is."""
  folder = os.path.dirname(path) or '.'
  # The best checkpoint is kept one level down.
  absolute = folder if urls.is_remote(folder) else os.path.abspath(folder)
  parent = os.path.dirname(absolute)
  return parent if absolute == checkpoints.best_dir(parent) else folder


def add_problem(words: Sequence[str]) -> list[str]:
  """Returns the words of a command line, and the --problem of its run.

  Not for --help: who asks how a program is called has not yet asked for one.

  Raises:
    cli.UsageError: the problem is another user's, see `_find_problem`.
  """
  words = list(words)
  names = {word.lstrip('-').partition('=')[0] for word in words}
  if names & {'help', 'helpfull'}:
    return words
  given = command_line.find_value(words, 'logdir')
  checkpoint = command_line.find_value(words, 'checkpoint')
  logdir = _find_logdir(given and urls.expand(given), checkpoint)
  if not logdir or (urls.is_remote(logdir) and urls.find_mistake(logdir)):
    return words
  with contextlib.suppress(cli.RunError):  # It may begin later.
    if named := _find_problem(_read_flags(logdir), words, logdir):
      words.append(f'--problem={named}')
  return words


def take_flags(
  logdir: str,
  timeout_secs: float = 0,
  prepare: Callable[[list[str]], object] = lambda words: None,
) -> None:
  """Parses the flags of the run, then those of the command line again.

  A checkpoint that was taken out of its run has no flags; then the command line
  must give them all.

  Args:
    logdir: from `logdir_from_flags`.
    timeout_secs: how long the run may take to begin.
    prepare: imports the problem that the flags name, see cli.run.

  Raises:
    cli.RunError: there is no run in --logdir.
    cli.UsageError: its problem is another user's, see `_find_problem`.
  """
  deadline = time.monotonic() + timeout_secs
  while True:
    try:
      saved = _read_flags(logdir)
      break
    except cli.RunError:
      if logdirs.from_flags() is None:
        return
      if time.monotonic() >= deadline:
        raise
    time.sleep(0.2)
  # These are the flags of train; only some of them are known here.
  given = command_line.expand(sys.argv[1:])
  named = _find_problem(saved, given, logdir)
  kept = [f'--problem={named}'] if named else []
  if named == os.path.join(logdir, run_flags.PROBLEM_FILE):
    _log.info(f'its --problem is not in {os.getcwd()}: {kept[0]} is taken')
  words = [*saved, *kept, *given]
  prepare(words)
  try:
    command_line.parse(FLAGS, [sys.argv[0], *words], known_only=True)
  except flags.Error as error:
    raise cli.RunError(f'the flags of the run in {logdir}: {error}') from error


def _read_flags(logdir: str) -> list[str]:
  """Returns the flags of the run, without --flagfile."""
  return command_line.expand(run_flags.read(logdir))


def _find_problem(
  saved: list[str], given: list[str], logdir: str
) -> str | None:
  """Returns the --problem that only the run names, or None.

  Of a file that is not in this folder, the copy in `logdir` is taken. So a run
  can be evaluated in another folder than that in which it was trained.

  Args:
    saved: the flags of the run.
    given: the command line.

  Raises:
    cli.UsageError: it is neither one of the installed problems nor this user's
      choice: the run, or the file, belongs to another user. It would run with
      the rights of whoever only wants to look.
  """
  named = command_line.find_value(saved, 'problem')
  if not named or command_line.find_value(given, 'problem') is not None:
    return None
  kept = os.path.join(logdir, run_flags.PROBLEM_FILE)
  if (
    named.endswith('.py')
    and not os.path.isfile(os.path.expanduser(named))
    and os.path.isfile(kept)
  ):
    named = kept
  if named in registry.find(PROBLEMS):
    return named
  if other := _find_other_owner(named, kept):
    path, uid = other
    raise cli.UsageError(
      f'--logdir={logdir} has --problem={named}, a program, and {path} belongs '
      f'to another user (uid {uid}): read the program, and give '
      f'--problem={named} yourself if it may run as you'
    )
  return named


def _find_other_owner(named: str, kept: str) -> tuple[str, int] | None:
  """Returns what gives another user a say in a program, and who that is.

  Another user's file may run if it is as it was when this user trained with it:
  whoever trained has named it.

  Args:
    named: the problem that the run names.
    kept: the path of the copy in its log directory.
  """
  logdir = os.path.dirname(kept)
  if other := files.find_other_owner(logdir, run_flags.path_in(logdir)):
    return other
  named = os.path.expanduser(named)
  if not named.endswith('.py') or not os.path.isfile(named):
    return None
  other = files.find_other_owner(named)
  # A store does not say whose copy it has.
  is_told = not (urls.is_remote(kept) or files.find_other_owner(kept))
  if other and is_told and paths.have_same_bytes(named, kept):
    return None
  return other


def find_checkpoint(
  logdir: str,
  find_divergence: Callable[[str], str | None] = lambda path: None,
) -> str:
  """Returns the path of the checkpoint that --checkpoint asks for.

  If it asks for none in particular, a checkpoint that is not whole or has
  diverged is logged, and the one before it is taken, as a resumed training
  would. One that is asked for may have diverged; that is logged, too.

  Args:
    find_divergence: as for `checkpoints.find_fault`.

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
  if path is None or not checkpoint_reader.is_there(path):
    what = 'a checkpoint' if which is None else f'checkpoint {which}'
    where = f'in --logdir={logdir}'
    if which and _is_path(which):
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


def use_checkpoint(
  find: Callable[[], str], use: Callable[[str], _Result]
) -> _Result:
  """Returns use(path) of the checkpoint that --checkpoint asks for.

  A run that is still training removes its older checkpoints: if the one that
  was found is gone before it was read, and --checkpoint names none in
  particular, the one that has taken its place is used.

  Args:
    find: see `find_checkpoint`.
    use: reads the checkpoint.
  """
  while True:
    path = find()
    try:
      return use(path)
    except (cli.RunError, tf.errors.OpError, ValueError):
      is_named = _CHECKPOINT.value not in (None, 'best')
      if is_named or checkpoint_reader.is_there(path):
        raise
    _log.info(f'{path} is gone: newer ones have taken its place')


def _is_path(which: str) -> bool:
  return which != 'best' and not which.isdigit()
