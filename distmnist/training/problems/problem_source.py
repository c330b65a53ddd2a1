"""The source of a user's problem, as the log directory of a run keeps it."""

import os

from distmnist.common import files
from distmnist.storage import paths

_FILE = 'problem.py'


def keep(problem, logdir):
  """Writes the source into the log directory; the images have none."""
  if problem.is_custom:
    # As it is: it may be in another encoding than UTF-8.
    with files.replacing(os.path.join(logdir, _FILE), 'wb') as file:
      file.write(problem.read_source())


def find_change(problem, logdir):
  """Returns a line (str) if the source has changed since the run began.

  None if it is the same or none was kept.
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
  return (
    f'--problem={problem.describe()} has changed since the run in {logdir} '
    f'began: {path} is what it was'
  )
