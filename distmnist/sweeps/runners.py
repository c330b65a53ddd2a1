"""What runs the trials of a sweep: two interfaces.

A Backend is the place, known and checked before anything starts: how many
trials run at a time, and with what. It makes the Runner, a context in which
commands start and end. There are two of each: this machine
(local_backend.py) and Spark (spark/sweep_backend.py,
spark/sweep_runner.py), which needs a shared folder for the sweep.
"""

import abc
import contextlib
import dataclasses
import math
import os
import signal
import time

from distmnist.common import cli, files
from distmnist.common.names import SWEEP
from distmnist.launching.screen import task_logs


@dataclasses.dataclass(frozen=True)
class Limit:
  """How long a command may take.

  Attributes:
    secs: float, from its start (see Command.logs_dir); after that it is told to
      leave.
    grace_secs: float, how long it then has before it is killed.
  """

  secs: float = math.inf
  grace_secs: float = 0.0

  def note(self, log, code):
    """Returns the exit code of a command that took too long.

    Args:
      log: str, the path of its log, which gets the reason as its last error.
      code: int, its exit code; 0 stays, as the command was done after all.
    """
    if code == 0:
      return code
    task_logs.append(
      log,
      [f'{SWEEP}: error: not done within --trial_timeout_secs={self.secs:g}'],
    )
    return cli.FAILED


NO_LIMIT = Limit()


@dataclasses.dataclass(frozen=True)
class Command:
  """What a runner is asked to run.

  Attributes:
    name: str, what it is called here.
    argv: list of str, ('python', '-m', module, flags...).
    log: str, a path; what the command prints is appended there.
    env: dict, its environment in addition to the machine's.
    limit: Limit, how long it may take.
    logs_dir: str, a folder: the command waits in a queue until something is
      written to a log there, and its time starts then; '' if it starts at once.
      A runner that has a queue of its own does not look there.
  """

  name: str
  argv: list
  log: str
  env: dict = dataclasses.field(default_factory=dict)
  limit: Limit = NO_LIMIT
  logs_dir: str = ''


class Runner(contextlib.AbstractContextManager):
  """Runs commands.

  It is a context: all commands end with it, and also with this process, even by
  kill -9. While it is open, SIGINT, SIGTERM and SIGHUP do not end this process:
  they are collected in `signals`, and they interrupt `wait`.

  Attributes:
    signals: list of int, those that this process received.
  """

  # From the kill to the end of a command; one that takes longer is given up.
  _kill_secs = math.inf

  def __init__(self):
    self.signals = []
    self._running = {}  # name -> what `_begin` returned

  def start(self, command):
    """Begins a Command; returns the size of its log so far, in bytes.

    Raises:
      OSError: the log cannot be written.
      cli.RunError: it cannot be started.
    """
    with open(command.log, 'ab', opener=files.no_follow) as file:
      size = file.seek(0, os.SEEK_END)
    self._running[command.name] = self._begin(command)
    return size

  def wait(self):
    """Returns [(name, exit code), ...] of some commands that have ended.

    The list is empty if a signal came first or nothing runs.

    Raises:
      cli.RunError: nothing more can be run.
    """
    while self._running and not self.signals:
      if ended := self._turn():
        return ended
    return []

  def stop(self, signum, grace_secs):
    """Ends all commands; kills those that have not left after their grace.

    All are killed at once if another signal comes.

    Returns:
      [(name, exit code), ...] of all of them.
    """
    num_signals = len(self.signals)
    self._tell(signum, grace_secs)
    ended = self._turn_until(time.monotonic() + grace_secs, num_signals)
    self._kill(signum)
    ended += self._turn_until(time.monotonic() + self._kill_secs)
    return ended + self._give_up()

  @abc.abstractmethod
  def _begin(self, command):
    """Begins a Command; returns what `_running` is to hold for it."""

  @abc.abstractmethod
  def _turn(self, secs=math.inf):
    """Waits up to `secs`; returns [(name, code), ...] of some ended commands.

    Removes them from `_running`, and ends commands that take too long.
    """

  @abc.abstractmethod
  def _tell(self, signum, grace_secs):
    """Tells all commands to save and leave, each of them only once."""

  @abc.abstractmethod
  def _kill(self, signum):
    """Kills all commands; `signum` is the signal they were told to leave by."""

  def _turn_until(self, deadline, num_signals=math.inf):
    """Returns the commands that end before `deadline` or further signals."""
    ended = []
    while self._running and len(self.signals) <= num_signals:
      secs = deadline - time.monotonic()
      if secs <= 0:
        break
      ended += self._turn(secs)
    return ended

  def _give_up(self):
    """Returns commands that no longer answer as killed, and forgets them."""
    ended = [(name, -signal.SIGKILL) for name in self._running]
    self._running.clear()
    return ended


@dataclasses.dataclass(frozen=True)
class Backend(abc.ABC):
  """Where the trials run.

  Attributes:
    num_parallel: int, how many run at the same time.
    num_cores: int, how many each of them has for itself, or None if the sweep
      does not divide them.
  """

  num_parallel: int
  num_cores: int | None

  @abc.abstractmethod
  def make_runner(self, folder, lock, stop_grace_secs):
    """Returns a Runner.

    Args:
      folder: str, that of the sweep, for the runner's own logs.
      lock: file, locked; it stays so as long as any command runs.
      stop_grace_secs: float, train's.
    """

  @abc.abstractmethod
  def check_ready(self):
    """Raises cli.RunError if the runner cannot start."""

  @abc.abstractmethod
  def find_env(self, slot):
    """Returns the environment (dict) of slot 0 <= slot < num_parallel."""

  @abc.abstractmethod
  def find_data_dir(self, train_flags):
    """Returns the flags that `train_flags` (list of str) lack to find data."""
