"""The run of --logdir, for programs that only look at it."""

import os

from distmnist.common import cli
from distmnist.logdir import logdirs
from distmnist.storage import urls
from distmnist.watching import metrics_file, watched_run


def folder_from_flags():
  """Returns the folder (str) of the run.

  Raises:
    cli.UsageError: --logdir is missing.
    cli.RunError: it is in a store.
  """
  logdir = logdirs.from_flags()
  if not logdir:
    raise cli.UsageError('--logdir is missing: name the folder of a run')
  if urls.is_remote(logdir):
    raise cli.RunError(
      f'--logdir={logdir} is in a store, where tasks do not say what they do: '
      'see their logs'
    )
  return logdir


def from_flags():
  """Returns the watched_run.WatchedRun of --logdir.

  Raises:
    cli.UsageError, cli.RunError: see `folder_from_flags`; or no run has written
      there.
  """
  logdir = folder_from_flags()
  found = watched_run.WatchedRun(logdir)
  state = found.look()
  if not state.tasks and not state.launcher:
    what = 'no such folder'
    if os.path.isdir(logdir):
      what = f'no task has written a {metrics_file.NAME} there'
    raise cli.RunError(f'no run in --logdir={logdir}: {what}')
  return found
