"""The source of a user's problem, as the log directory of a run keeps it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from distmnist.common import cli, command_line, files, layout
from distmnist.logdir import run_flags
from distmnist.storage import paths

if TYPE_CHECKING:
  from distmnist.training.problems import problem as problem_lib

_FILE, _EARLIER_FILE = run_flags.PROBLEM_FILE, 'problem_before.py'


def keep(problem: problem_lib.Problem | None, logdir: str) -> None:
  """Writes the source into the log directory, and keeps one that it replaces.

  The images, and a script with a loop of its own (None), have none.
  """
  if problem is None or not problem.is_custom:
    return
  source, kept = problem.read_source(), _read_kept(logdir)
  if kept not in (None, source):
    _write(layout.make_own_path(logdir, _EARLIER_FILE), kept)
  _write(os.path.join(logdir, _FILE), source)


def _write(path: str, source: bytes) -> None:
  # As it is: it may be in another encoding than UTF-8.
  with files.replacing(path, 'wb') as file:
    file.write(source)


def find_change(
  problem: problem_lib.Problem | None,
  logdir: str | None,
  is_resumed: bool = False,
) -> str | None:
  """Returns a line if the source has changed since the run began.

  None if it is the same or none was kept.

  Args:
    is_resumed: whether `keep` is about to follow.
  """
  if not logdir or problem is None or not problem.is_custom:
    return None
  if _read_kept(logdir) in (None, problem.read_source()):
    return None
  path = os.path.join(logdir, _FILE)
  if is_resumed:
    path = layout.own_path(logdir, _EARLIER_FILE)
  return (
    f'--problem={problem.describe()} has changed since the run in {logdir} '
    f'began: {path} is what it was'
  )


def flags_of_meaning(
  problem: problem_lib.Problem, logdir: str | None
) -> list[str]:
  """Returns the names of the flags that must be as the run's in `logdir`.

  Not --problem, if it names the run's own file, or one with the same source, by
  another path: from another folder, or in full.
  """
  names = problem.flags_of_meaning()
  if problem.is_custom and logdir and _is_of_run(problem, logdir):
    names.remove('problem')
  return names


def _is_of_run(problem: problem_lib.Problem, logdir: str) -> bool:
  try:
    then = command_line.find_value(run_flags.read(logdir), 'problem') or ''
  except cli.RunError:
    return False
  now = problem.describe()
  if not (then.endswith('.py') and now.endswith('.py')):
    return False
  before, here = (os.path.realpath(os.path.expanduser(p)) for p in (then, now))
  return before == here or _read_kept(logdir) == problem.read_source()


def _read_kept(logdir: str) -> bytes | None:
  try:
    return paths.read_bytes(os.path.join(logdir, _FILE))
  except OSError:
    return None
