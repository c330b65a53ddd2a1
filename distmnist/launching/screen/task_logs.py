"""The logs of a launcher's tasks: one file per task, a new one for each run."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import tempfile
from collections.abc import Iterable, Sequence

from distmnist.common import cli, files, store_check
from distmnist.launching import jobs, run_record
from distmnist.storage import mirror, process_tag, urls

# Logs of earlier runs in the same folder: worker_0.log.1 is the latest.
NUM_KEPT = 3
_temporary: set[str] = set()  # the folders that no --logs_dir asked for
_PREFIX = 'distmnist_logs_'


def make_logs_dir(
  logs_dir: str | None,
  logdir: str | None,
  record: run_record.RunRecord | None = None,
) -> str:
  """Makes the folder for the logs and returns it.

  Args:
    logs_dir: the one asked for, or None.
    logdir: train's --logdir, or None.
    record: that of the launch, which takes `logdir`; or None.

  Raises:
    cli.UsageError: it cannot be made or written to.
    cli.RunError: another run uses `logdir`.
  """
  if logdir:
    store_check.check('logdir', logdir, is_owned=bool(record))
    if record:
      record.take(urls.expand(logdir))
  if logs_dir:
    path, given, advice = logs_dir, 'logs_dir', ''
  elif logdir and not urls.is_remote(logdir):
    path, given = os.path.join(logdir, 'logs'), 'logdir'
    advice = '; --logs_dir may name another folder'
  else:
    _remove_earlier_temporary()
    folder = tempfile.mkdtemp(prefix=f'{_PREFIX}{process_tag.make_tag()}_')
    _temporary.add(folder)
    if logdir:
      mirror.follow(folder, os.path.join(logdir, 'logs'))
    return folder
  # A shell does not expand the ~ of --logdir=~/run.
  path = os.path.expanduser(path)
  try:
    os.makedirs(path, exist_ok=True)
  except OSError as error:
    raise cli.UsageError(
      f'--{given}: no folder for the logs: {path}: {error.strerror}{advice}'
    ) from error
  if not os.access(path, os.W_OK | os.X_OK):
    raise cli.UsageError(f'no folder for the logs: cannot write to {path}')
  return path


def log_path(logs_dir: str, task: jobs.Task) -> str:
  return os.path.join(logs_dir, task.name.replace(' ', '_') + '.log')


def remove_if_temporary(logs_dir: str) -> None:
  """Removes a folder if `make_logs_dir` made it as a temporary one."""
  if logs_dir in _temporary:
    _temporary.remove(logs_dir)
    mirror.close(logs_dir)
    shutil.rmtree(logs_dir, ignore_errors=True)


def is_temporary(logs_dir: str) -> bool:
  """Whether `make_logs_dir` made a folder as a temporary one."""
  return logs_dir in _temporary


def _remove_earlier_temporary() -> None:
  """Removes what launchers of this user left that have failed or were killed.

  The logs of the last NUM_KEPT stay.
  """
  left = []
  with os.scandir(tempfile.gettempdir()) as entries:
    for entry in entries:
      match = re.fullmatch(rf'{_PREFIX}(\w+-\d+-\w+?)_\w+', entry.name)
      if not match or not process_tag.is_tag_dead(match[1]):
        continue
      with contextlib.suppress(OSError):
        status = entry.stat(follow_symlinks=False)
        is_folder = entry.is_dir(follow_symlinks=False)
        if is_folder and status.st_uid == os.geteuid():
          left.append((status.st_mtime, entry.path))
  for _, path in sorted(left)[:-NUM_KEPT]:
    shutil.rmtree(path, ignore_errors=True)


def rotate(logs_dir: str, tasks: Iterable[jobs.Task]) -> None:
  """Renames the logs of earlier runs, so that a run begins new ones.

  A launcher that still writes to one continues under its new name.
  """
  for task in tasks:
    path = log_path(logs_dir, task)
    if not os.path.exists(path) or not os.path.getsize(path):
      continue
    for number in range(NUM_KEPT, 0, -1):
      older = f'{path}.{number - 1}' if number > 1 else path
      if os.path.exists(older):
        os.replace(older, f'{path}.{number}')


def begin_attempt(path: str, note: str) -> int:
  """Makes a log ready for a task; returns where its lines begin, in bytes.

  Args:
    path: its folder is made again if somebody has removed it.
    note: for a line between this attempt and the last, or ''; lost on a full
      disk.

  Raises:
    OSError: it cannot be written.
  """
  os.makedirs(os.path.dirname(path), exist_ok=True)
  try:
    return append(path, [f'--- {note} ---'] if note else [])
  except OSError as error:
    if error.errno not in files.FULL:
      raise
    return os.path.getsize(path)


def append(path: str, lines: Sequence[str]) -> int:
  """Adds `lines` to a log; returns its new size in bytes.

  Raises:
    OSError: it cannot be written.
  """
  with open(path, 'a+b', opener=files.no_follow) as log:
    if lines:
      size = log.seek(0, os.SEEK_END)
      log.seek(max(0, size - 1))
      # The previous attempt may have left its last line unfinished.
      start = '' if log.read() in (b'', b'\n') else '\n'
      text = ''.join(f'{line}\n' for line in lines)
      log.write((start + text).encode())
    return log.seek(0, os.SEEK_END)


def append_if_possible(path: str, lines: Sequence[str]) -> None:
  """Adds `lines` to a log; loses those that do not fit."""
  with contextlib.suppress(OSError):
    append(path, lines)


def read_last_lines(
  path: str | os.PathLike[str], start: int = 0, num_lines: int = 10
) -> list[str]:
  """Returns the last lines of a log from byte `start` on.

  Raises:
    OSError: it cannot be read.
  """
  with open(path, 'rb') as log:
    size = log.seek(0, os.SEEK_END)
    log.seek(max(start, size - (1 << 14)))
    lines = log.read().decode(errors='replace').splitlines()
  return [line for line in lines if line.strip()][-num_lines:]


def find_reason(lines: Sequence[str]) -> str | None:
  """Returns the reason in the last of a program's lines, or None."""
  said = cli.ERROR_LINE.fullmatch(lines[-1]) if lines else None
  return said and said[2]


class AttemptLogs:
  """The logs of tasks that may restart: each has one log for all attempts.

  They are in an existing folder.
  """

  def __init__(self, logs_dir: str) -> None:
    self._logs_dir = logs_dir
    # Where each last attempt begins, in bytes.
    self._starts: dict[str, int] = {}

  def begin(self, task: jobs.Task, note: str = '') -> str:
    """Makes the log of a task ready; returns its path.

    Args:
      note: for a line between this attempt and the last, or ''.

    Raises:
      OSError: it cannot be written.
    """
    path = log_path(self._logs_dir, task)
    self._starts[task.name] = begin_attempt(path, note)
    return path

  def last_lines(self, task: jobs.Task, num_lines: int = 10) -> list[str]:
    """Returns the last lines of a task's last attempt.

    There are none if somebody has removed its log.
    """
    path = log_path(self._logs_dir, task)
    try:
      return read_last_lines(path, self._starts[task.name], num_lines)
    except FileNotFoundError:
      return []

  def remove(self, task: jobs.Task) -> None:
    with contextlib.suppress(FileNotFoundError):
      os.remove(log_path(self._logs_dir, task))
