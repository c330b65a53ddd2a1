"""What runs the trials of a sweep: a Backend is the place, a Runner the rules.

A Backend is known and checked before anything starts: how many trials run at a
time, and with what. It opens the Host on which a Runner starts commands and
ends them: this machine's (local_backend.py), or one of Spark's executors
(spark/sweep_backend.py), which needs a shared folder for the sweep.
"""

from __future__ import annotations

import abc
import contextlib
import dataclasses
import glob
import logging
import math
import os
import signal
import time
from collections.abc import Iterable, Sequence
from typing import IO

from distmnist.common import cli, files
from distmnist.common.names import ATTEMPT, SWEEP
from distmnist.launching import host as host_lib
from distmnist.launching.screen import task_logs

# A command that its host has lost is started again so often.
MAX_RESTARTS = 3
# From the kill to the end of a command; one that takes longer is given up: it
# ends with its host.
_KILL_SECS = 10.0
# How often to look whether a command has left its queue.
_LOOK_SECS = 0.5

_log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Command:
  """What a runner is asked to run.

  Attributes:
    name: what it is called here.
    argv: ('python', '-m', module, flags...).
    log: a path; what the command prints is appended there.
    env: its environment in addition to the machine's.
    limit_secs: how long it may take each time it runs; after that it is told to
      leave.
    logs_dir: a folder: the command waits in a queue until something is written
      to a log there, and its time starts then; '' if it starts at once.
  """

  name: str
  argv: Sequence[str]
  log: str
  env: dict[str, str] = dataclasses.field(default_factory=dict)
  limit_secs: float = math.inf
  logs_dir: str = ''


@dataclasses.dataclass
class _Running:
  """A command that was started.

  Attributes:
    command: what runs.
    queue: in which it waits, or None.
    deadline: when it is told to leave; once it was told, when it is killed; by
      time.monotonic().
    is_told: whether it was told to leave.
    is_late: whether that was because it took too long.
    is_lost: whether its host has lost it.
    num_restarts: how often it was started again.
  """

  command: Command
  queue: _Queue | None = None
  deadline: float = math.inf
  is_told: bool = False
  is_late: bool = False
  is_lost: bool = False
  num_restarts: int = 0


class Runner:
  """Runs commands on a Host, which ends them all when it is closed.

  A command that the host loses, with the executor of Spark that it runs on, is
  told to save, and started again once it has ended.

  Attributes:
    signals: those that this process received while the host is open. They end
      nothing, but they interrupt `wait`.
  """

  def __init__(self, host: host_lib.Host, grace_secs: float) -> None:
    """
    Args:
      host: opened and closed by the caller.
      grace_secs: from telling a command to leave to killing it.
    """
    self.signals: list[int] = host.signals
    self._host = host
    self._grace_secs = grace_secs
    self._running: dict[str, _Running] = {}
    self._is_stopping = False

  def start(self, command: Command) -> int:
    """Begins a Command; returns the size of its log so far, in bytes.

    Raises:
      OSError: the log cannot be written.
      cli.RunError: it cannot be started.
    """
    with open(command.log, 'ab', opener=files.no_follow) as file:
      size = file.seek(0, os.SEEK_END)
    running = _Running(command)
    self._begin(running)
    self._running[command.name] = running
    return size

  def wait(self) -> list[tuple[str, int]]:
    """Returns [(name, exit code), ...] of some commands that have ended.

    The list is empty if a signal came first or nothing runs.

    Raises:
      cli.RunError: nothing more can be run.
    """
    while self._running and not self.signals:
      if ended := self._turn():
        return ended
    return []

  def stop(self, grace_secs: float | None = None) -> list[tuple[str, int]]:
    """Ends all commands; kills those that have not left after their grace.

    All are killed at once if another signal comes.

    Args:
      grace_secs: by default the runner's.

    Returns:
      [(name, exit code), ...] of all of them; -n for signal n.
    """
    self._is_stopping = True
    ended: list[tuple[str, int]] = []
    num_signals = len(self.signals)
    if self._host.is_ready:
      grace_secs = self._grace_secs if grace_secs is None else grace_secs
      self._tell(self._running, grace_secs)
      ended += self._turn_until(time.monotonic() + grace_secs, num_signals)
      self._host.signal(list(self._running), signal.SIGKILL)
      ended += self._turn_until(time.monotonic() + _KILL_SECS)
    else:
      # No command has begun, and none will.
      self._host.kill()
    ended += [(name, -signal.SIGKILL) for name in self._running]
    self._running.clear()
    return ended

  def _begin(self, running: _Running) -> None:
    command, env = running.command, dict(running.command.env)
    if running.num_restarts:
      env[ATTEMPT] = str(running.num_restarts + 1)
    running.deadline = math.inf
    if command.logs_dir and command.limit_secs < math.inf:
      running.queue = _Queue(command.logs_dir)
    self._host.start(
      host_lib.Request(command.name, command.argv, env, command.log)
    )

  def _turn_until(
    self, deadline: float, num_signals: float = math.inf
  ) -> list[tuple[str, int]]:
    """Returns the commands that end before `deadline` or further signals."""
    ended: list[tuple[str, int]] = []
    while self._running and len(self.signals) <= num_signals:
      secs = deadline - time.monotonic()
      if secs <= 0:
        break
      ended += self._turn(secs)
    return ended

  def _turn(self, secs: float = math.inf) -> list[tuple[str, int]]:
    """Waits up to `secs`; returns [(name, code), ...] of some ended commands.

    Removes them from `_running`, and ends commands that take too long.
    """
    if self._look_at_queues():
      secs = min(secs, _LOOK_SECS)
    self._end_overdue()
    first = min(running.deadline for running in self._running.values())
    secs = max(0.0, min(secs, first - time.monotonic()))
    events = self._host.poll(None if secs == math.inf else secs)
    self._note_begun()
    ended = []
    for name, code in events:
      if code is None:
        self._running[name].is_lost = True
        self._tell([name], self._grace_secs)
      elif (code := self._conclude(name, code)) is not None:
        ended.append((name, code))
    return ended

  def _note_begun(self) -> None:
    """Starts the time of what has begun, and waits in no queue."""
    while self._host.begun:
      name, _ = self._host.begun.pop(0)
      running = self._running.get(name)
      if running and not running.queue and not running.is_told:
        running.deadline = time.monotonic() + running.command.limit_secs

  def _look_at_queues(self) -> list[_Running]:
    """Starts the time of what has left its queue; returns what waits."""
    waiting = [one for one in self._running.values() if one.queue]
    for running in waiting:
      if running.queue and running.queue.is_left():
        running.queue = None
        running.deadline = time.monotonic() + running.command.limit_secs
    return [one for one in waiting if one.queue]

  def _end_overdue(self) -> None:
    """Tells overdue commands to leave, and kills those that do not."""
    now = time.monotonic()
    for name, running in self._running.items():
      if now < running.deadline:
        continue
      if running.is_told:
        self._host.signal([name], signal.SIGKILL)
        running.deadline = math.inf
      else:
        running.is_late = True
        self._tell([name], self._grace_secs)

  def _tell(self, names: Iterable[str], grace_secs: float) -> None:
    """Tells commands to save and leave; a second time would mean at once."""
    untold = [name for name in names if not self._running[name].is_told]
    self._host.signal(untold, signal.SIGTERM)
    for name in untold:
      running = self._running[name]
      running.is_told, running.queue = True, None
      running.deadline = time.monotonic() + grace_secs

  def _conclude(self, name: str, code: int) -> int | None:
    """Returns the exit code of a command that has ended, None if it restarts.

    Args:
      name: of the command.
      code: from its host.
    """
    running = self._running[name]
    log, reason = running.command.log, self._host.reasons.pop(name, '')
    if code and running.is_late:
      secs = running.command.limit_secs
      _note_error(log, f'not done within --trial_timeout_secs={secs:g}')
      code = cli.FAILED
    elif code and running.is_lost and not self._is_stopping:
      if running.num_restarts < MAX_RESTARTS:
        self._restart(running, reason)
        return None
      text = f'this was restart {MAX_RESTARTS} of {MAX_RESTARTS}'
      _note_error(log, f'{reason}; {text}')
      code = cli.LOST
    del self._running[name]
    return code

  def _restart(self, running: _Running, reason: str) -> None:
    command, number = running.command, running.num_restarts + 1
    _log.info(
      f'{describe(command.name)}: {reason}: restart {number} of'
      f' {MAX_RESTARTS}, from its last checkpoint'
    )
    task_logs.append_if_possible(command.log, [f'--- restart {number} ---'])
    running.num_restarts = number
    running.is_told = running.is_lost = False
    self._begin(running)


class _Queue:
  """Where a command waits until something is written to a log in a folder."""

  def __init__(self, folder: str) -> None:
    self._pattern = os.path.join(glob.escape(folder), '*_[0-9]*.log')
    self._job_log = os.path.join(folder, 'slurm.log')
    self._before = self._look()  # An earlier run may have written there.

  def is_left(self) -> bool:
    return not self._look() <= self._before

  def _look(self) -> set[tuple[str, int, int]]:
    """Returns (path, inode, bytes) of each log that is not empty."""
    found: set[tuple[str, int, int]] = set()
    for path in (*glob.glob(self._pattern), self._job_log):
      with contextlib.suppress(OSError):
        at = os.stat(path)
        found |= {(path, at.st_ino, at.st_size)} if at.st_size else set()
    return found


def describe(name: str) -> str:
  """Returns what the user is told of a command called `name`."""
  return f'trial {name}' if name.isdecimal() else f'the {name}'


def _note_error(log: str, text: str) -> None:
  """Adds a last error to the log (a path) of a command."""
  task_logs.append_if_possible(log, [f'{SWEEP}: error: {text}'])


@dataclasses.dataclass(frozen=True)
class Backend(abc.ABC):
  """Where the trials run.

  Attributes:
    num_parallel: how many run at the same time.
    num_cores: how many each of them has for itself; None if the sweep does not
      divide them.
  """

  num_parallel: int
  num_cores: int | None

  @abc.abstractmethod
  def open_host(
    self, folder: str, lock: IO, stop_grace_secs: float
  ) -> contextlib.AbstractContextManager[host_lib.Host]:
    """Returns a context: a host for commands.

    Args:
      folder: that of the sweep, for the host's own logs.
      lock: locked; it stays so as long as any command runs.
      stop_grace_secs: train's.

    Raises (on entering):
      cli.RunError: it cannot start anything.
      signals.SignalError: a signal came meanwhile.
    """

  @abc.abstractmethod
  def check_ready(self) -> None:
    """Raises cli.RunError if the host cannot be opened."""

  @abc.abstractmethod
  def find_env(self, slot: int) -> dict[str, str]:
    """Returns the environment of slot 0 <= slot < num_parallel."""

  @abc.abstractmethod
  def find_data_dir(self, train_flags: Sequence[str]) -> list[str]:
    """Returns the flags that `train_flags` lack to find data."""
