"""The source of a user's problem, as the log directory of a run keeps it."""

import os

from distmnist.common import files
from distmnist.storage import paths

_FILE, _EARLIER_FILE = 'problem.py', 'problem_before.py'


def keep(problem, logdir):
  """Writes the source into the log directory, and keeps one that it replaces.

  The images have none.
  """
  if not problem.is_custom:
    return
  path = os.path.join(logdir, _FILE)
  if find_change(problem, logdir):
    _write(os.path.join(logdir, _EARLIER_FILE), paths.read_bytes(path))
  _write(path, problem.read_source())


def _write(path, source):
  with files.replacing(path, 'wb') as file:
    file.write(source)


def find_change(problem, logdir, is_resumed=False):
  """Returns a line (str) if the source has changed since the run began.

  None if it is the same or none was kept.

  Args:
    problem: problem.Problem.
    logdir: str.
    is_resumed: bool, whether `keep` is about to follow.
  """
  if not problem.is_custom:
    return None
  path = os.path.join(logdir, _FILE)
  try:
    kept = paths.read_bytes(path)
  except OSError:
    return None
  if kept == problem.read_source():
    return None
  if is_resumed:
    path = os.path.join(logdir, _EARLIER_FILE)
  return (
    f'--problem={problem.describe()} has changed since the run in {logdir} '
    f'began: {path} is what it was'
  )
