"""The run of --logdir, for programs that only look at it."""

from __future__ import annotations

import contextlib
import os

from distmnist.common import cli, layout, store_check
from distmnist.logdir import logdirs
from distmnist.storage import paths, urls
from distmnist.watching import metrics_file, watched_run


def folder_from_flags() -> str:
  """Returns the folder of the run: a path or the address of a store.

  Raises:
    cli.UsageError: --logdir is missing, or an address that cannot be used.
  """
  logdir = logdirs.from_flags()
  if not logdir:
    raise cli.UsageError('--logdir is missing: name the folder of a run')
  store_check.check('logdir', logdir, is_written=False)
  return logdir


def from_flags() -> watched_run.WatchedRun:
  """Returns the run of --logdir; see `look`.

  Raises:
    cli.UsageError: see `folder_from_flags`.
  """
  return look(folder_from_flags())


def look(logdir: str) -> watched_run.WatchedRun:
  """Returns the run of a folder, looked at once.

  Raises:
    cli.RunError: no run has written there.
  """
  found = watched_run.WatchedRun(logdir)
  state = found.look()
  if not state.tasks and not state.launcher:
    what = 'no such folder'
    if reason := _find_refusal(logdir):
      what = f'{reason}; look at the run as its owner'
    elif paths.is_folder(logdir):
      what = f'no task has written a {metrics_file.NAME} there'
      if urls.is_remote(logdir):
        what += (
          ', which needs a folder: of a run in a store see what its '
          'launcher prints, the logs in its --logs_dir, and TensorBoard'
        )
    raise cli.RunError(f'no run in --logdir={logdir}: {what}')
  return found


def _find_refusal(logdir: str) -> str | None:
  """Returns why the files of a run cannot be read, or None."""
  if urls.is_remote(logdir):
    return None
  try:
    # Not metrics_file.find: it finds nothing in a folder that is closed.
    for task in os.listdir(layout.metrics_dir(logdir, '')):
      with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        open(metrics_file.path_of(logdir, task), 'rb').close()
  except PermissionError as error:
    return f'{error.filename} cannot be read ({error.strerror})'
  except OSError:  # There is no such folder.
    return None
  return None
