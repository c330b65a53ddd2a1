"""The run of --logdir, for programs that only look at it."""

import os

from distmnist.common import cli
from distmnist.logdir import logdirs
from distmnist.watching import metrics_file, watched_run


def from_flags():
  """Returns the watched_run.WatchedRun of --logdir.

  Raises:
    cli.UsageError: it is missing.
    cli.RunError: no run has written there.
  """
  logdir = logdirs.from_flags()
  if not logdir:
    raise cli.UsageError('--logdir is missing: name the folder of a run')
  found = watched_run.WatchedRun(logdir)
  state = found.look()
  if not state.tasks and not state.launcher:
    what = 'no such folder'
    if os.path.isdir(logdir):
      what = f'no task has written a {metrics_file.NAME} there'
    raise cli.RunError(f'no run in --logdir={logdir}: {what}')
  return found
