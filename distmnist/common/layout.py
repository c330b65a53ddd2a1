"""The folders of a log directory.

At its top is what a person looks for: the checkpoints, the report, the flags.
What each task has measured is in METRICS, a folder a task, which are the runs
that TensorBoard shows. What only the programs read is in OWN.
"""

import os

from distmnist.storage import paths

METRICS = 'metrics'
# No name that Python imports: a script may run in its log directory.
OWN = 'distmnist-files'


def metrics_dir(logdir: str, task: str) -> str:
  """Returns the folder of a task, such as 'ps 0', or of 'validation'."""
  return os.path.join(logdir, METRICS, task.replace(' ', '_'))


def own_path(logdir: str, name: str) -> str:
  """Returns the path of a file or a folder that only the programs read."""
  return os.path.join(logdir, OWN, name)


def make_own_dir(logdir: str) -> None:
  """Makes the folder that `own_path` names, and `logdir` with it, if need be.

  Raises:
    OSError: it cannot be made.
  """
  paths.make_folders(os.path.join(logdir, OWN))


def make_own_path(logdir: str, name: str) -> str:
  """Returns `own_path` of a file to be written, in a folder that is there.

  Raises:
    OSError: the folder cannot be made.
  """
  make_own_dir(logdir)
  return own_path(logdir, name)
