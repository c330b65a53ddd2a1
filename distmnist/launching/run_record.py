"""Owns the log directory of a launch, records it there, and lets it be stopped.

The folder is this launcher's until the run has ended. The starts and ends of
tasks go to LOGDIR/metrics/launcher/metrics.jsonl. A request by `python -m
distmnist.stop` reaches this process as SIGINT, so that every launcher that
waits does what it does on Ctrl-C; so does the loss of the folder.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import signal
import socket
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from distmnist.common import cli, command_line, owner, owner_file, signals
from distmnist.common.names import LAUNCH_ID
from distmnist.launching import jobs
from distmnist.storage import urls
from distmnist.watching import metrics_file, stop_file, timeline

_log = logging.getLogger(__name__)

# Runs something beside the tasks: of (log directory, folder of the logs).
Sidecar = Callable[[str, str], contextlib.AbstractContextManager[object]]


class RunRecord:
  """Writes the lines of one launch, or none if it has no log directory.

  Attributes:
    code: the exit code of the launch.
    loss: cli.LostError, once another launcher has the folder; else None.
    is_asked_to_stop: whether somebody has left a request to stop.
  """

  def __init__(
    self,
    logdir: str | None,
    launcher: str,
    flags: Iterable[str],
    sidecars: Sequence[Sidecar] = (),
    launch_flags: Iterable[str] = (),
  ) -> None:
    """
    Args:
      launcher: its name.
      flags: those of train.
      launch_flags: those of launch.
      sidecars: entered once the lines have begun, left when the launch ends.
    """
    self.logdir = logdir
    self._launcher = launcher
    self._flags, self._launch_flags = list(flags), list(launch_flags)
    self._sidecars = sidecars
    self._writer: metrics_file.Writer | None = None
    # name -> attempt, whether it runs, code
    self._known: dict[str, tuple[int, bool, int | None]] = {}
    self.is_asked_to_stop = False
    self._stack = contextlib.ExitStack()
    self._folder = contextlib.ExitStack()
    self._is_taken = False
    self._is_over = threading.Event()
    self.code = 1
    self.loss: Exception | None = None

  def take(self, logdir: str) -> None:
    """Makes this process the launcher that writes in `logdir`, to the end.

    Does nothing when called again.

    Raises:
      cli.RunError: another launcher has it, or a chief that was started by
        hand.
    """
    if not self._is_taken:
      self._folder.enter_context(owner.held_by_launcher(logdir, self._lose))
      self._is_taken = True

  def begin(
    self, tasks: Iterable[jobs.Task], logs_dir: str, launch: str | None = None
  ) -> None:
    """Begins the lines, once the folder belongs to this launcher.

    Args:
      launch: LAUNCH_ID of the tasks; by default that of this process.
    """
    if not self.logdir or self._writer:
      return
    me = owner_file.describe_self()
    self._writer = metrics_file.Writer(
      self.logdir,
      metrics_file.LAUNCHER,
      secrets.token_hex(8),
      host=socket.gethostname(),
      pid=os.getpid(),
      process={name: me[name] for name in ('pid', 'machine', 'start')},
      launch=launch or os.environ.get(LAUNCH_ID, ''),
      launcher=self._launcher,
      tasks=[task.name for task in tasks if task.task_index is not None],
      # Relative inside of the folder: that may be moved or copied.
      logs_dir=_find_within(logs_dir, self.logdir),
      flags=self._flags,
      launch_flags=self._launch_flags,
    )
    # Made before the sidecars, and left before them: a request that comes
    # once the run has ended does not cut short what they deliver.
    watch = stop_file.Watch(self.logdir, self._stop)
    for make in self._sidecars:
      self._stack.enter_context(make(self.logdir, logs_dir))
    self._stack.enter_context(watch)

  def update(self, records: Mapping[str, Any]) -> None:
    """Writes which tasks have started or ended since the last call.

    Args:
      records: task_record.TaskRecords.
    """
    writer = self._writer
    if not writer:
      return
    for name, record in list(records.items()):
      now = record.attempt, record.is_running, record.code
      then = self._known.get(name, (0, False, None))
      self._known[name] = now
      if record.attempt > then[0]:
        writer.write(
          'event', event='started', about=name, attempt=record.attempt
        )
      if then[:2] != now[:2] and not record.is_running and record.attempt:
        text = str(record.failure.cause) if record.code else ''
        writer.write(
          'event', event='ended', about=name, code=record.code, text=text
        )

  def leave(self) -> None:
    """Writes that the tasks go on without this launcher, which ends no run."""
    if self._writer:
      self._writer.write('event', event='left')
      self._writer = None

  def close(self) -> None:
    """Writes the end of the launch, and ends the sidecars.

    The launch has its code: a signal now does no more than kill them, and end
    the merging of traced steps.
    """
    self._is_over.set()
    with self._folder, signals.collecting([]):
      if self._writer:
        ok = self.code == 0
        self._writer.write('end', ok=ok, code=self.code, text='')
      try:
        with signals.raising():
          self._stack.close()
      except signals.SignalError as error:
        _log.info(f'{error.name}: what ran beside the tasks was killed')
      if self._writer and self.logdir and not self.loss:
        _merge_traces(self.logdir)

  def _stop(self, who: str, is_taken: bool) -> bool:
    """Obeys a request to stop this run; returns whether it does."""
    del is_taken  # If so, by an earlier launcher that is gone.
    if not (self._writer and self.logdir):
      return False
    with contextlib.suppress(OSError):  # The tasks hear of it all the same.
      stop_file.confirm(self.logdir)
    if self.is_asked_to_stop:
      _log.info(f'{who} asks this run to stop, which it is doing')
      return True
    self.is_asked_to_stop = True
    _log.info(f'{who} asks this run to stop')
    self._writer.write('event', event='stopping', text=who)
    self._interrupt()
    return True

  def _lose(self, error: Exception) -> None:
    self.loss = error
    _log.info(str(error))
    self._interrupt()

  def _interrupt(self) -> None:
    if not self._is_over.is_set():
      os.kill(os.getpid(), signal.SIGINT)


def _merge_traces(logdir: str) -> None:
  why = ''
  try:
    with signals.raising():
      if path := timeline.merge(logdir):
        _log.info(f'the traced steps of all workers: {path}')
  except signals.SignalError as error:
    why = error.name
  except Exception as error:  # The run has already ended.
    why = str(error) or type(error).__name__
  if why:
    _log.info(
      f'no {timeline.NAME} of {logdir} ({why}): '
      f'{cli.name_command("report")} --logdir={logdir} makes it'
    )


def _find_within(path: str, folder: str) -> str:
  """Returns `path` relative to `folder` if it is inside, else absolute."""
  path, folder = os.path.abspath(path), os.path.abspath(folder)
  is_inside = path.startswith(os.path.join(folder, ''))
  return os.path.relpath(path, folder) if is_inside else path


@contextlib.contextmanager
def opened(
  job: jobs.Job, launcher: str, sidecars: Sequence[Sidecar] = ()
) -> Iterator[RunRecord]:
  """Yields the RunRecord of a launch, and closes it at the end.

  Args:
    launcher: its name.
    sidecars: see RunRecord.

  Raises:
    cli.LostError: another launcher has taken the log directory over.
  """
  logdir = None if job.dry_run else find_folder(job.given)
  mine = RunRecord(logdir, launcher, job.given, sidecars, job.launch_flags)
  try:
    yield mine
  except KeyboardInterrupt:
    if not mine.loss:
      raise
  finally:
    mine.close()
  if mine.loss:
    raise mine.loss


def find_folder(words: Sequence[str]) -> str | None:
  """Returns the log directory to which tasks can append lines, or None.

  Lines cannot be appended in a store.

  Args:
    words: the flags of train.
  """
  logdir = command_line.find_value(words, 'logdir')
  if not logdir or urls.is_remote(logdir):
    return None
  return os.path.expanduser(logdir)
