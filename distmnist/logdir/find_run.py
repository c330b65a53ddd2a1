"""The run of --logdir, for programs that only look at it."""

from distmnist.common import cli, store_check
from distmnist.logdir import logdirs
from distmnist.storage import paths, urls
from distmnist.watching import metrics_file, watched_run


def folder_from_flags():
  """Returns the folder of the run, a str: a path or the address of a store.

  Raises:
    cli.UsageError: --logdir is missing, or an address that cannot be used.
  """
  logdir = logdirs.from_flags()
  if not logdir:
    raise cli.UsageError('--logdir is missing: name the folder of a run')
  store_check.check('logdir', logdir, is_written=False)
  return logdir


def from_flags():
  """Returns the watched_run.WatchedRun of --logdir.

  Raises:
    cli.UsageError: see `folder_from_flags`.
    cli.RunError: no run has written there.
  """
  logdir = folder_from_flags()
  found = watched_run.WatchedRun(logdir)
  state = found.look()
  if not state.tasks and not state.launcher:
    what = 'no such folder'
    if paths.is_folder(logdir):
      what = f'no task has written a {metrics_file.NAME} there'
      if urls.is_remote(logdir):
        what += (
          ', which needs a folder: of a run in a store see what its '
          'launcher prints, the logs in its --logs_dir, and TensorBoard'
        )
    raise cli.RunError(f'no run in --logdir={logdir}: {what}')
  return found
