"""The run of --logdir, for programs that only look at it."""

from distmnist.common import cli, store_check
from distmnist.logdir import logdirs
from distmnist.storage import paths
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
  store_check.check('logdir', logdir, is_written=False)
  found = watched_run.WatchedRun(logdir)
  state = found.look()
  if not state.tasks and not state.launcher:
    what = 'no such folder'
    if paths.is_folder(logdir):
      what = f'no task has written a {metrics_file.NAME} there'
    raise cli.RunError(f'no run in --logdir={logdir}: {what}')
  return found
