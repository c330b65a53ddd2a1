"""Runs the trials of a sweep on this machine."""

import dataclasses
import math
import os
import signal
import time

from distmnist.common import files
from distmnist.launching.forking import fork_client
from distmnist.launching.supervisor import stop_grace
from distmnist.sweeps import runners


@dataclasses.dataclass
class _Running:
  """A running command.

  Attributes:
    command: runners.Command.
    deadline: float, when (by time.monotonic) it is told to leave or, once told,
      killed.
    is_late: whether it was told to leave because it took too long.
  """

  command: runners.Command
  deadline: float
  is_late: bool = False


class LocalRunner(runners.Runner):
  """Runs commands on this machine, as children of one fork server."""

  def __init__(
    self, module, log, lock, stop_grace_secs=stop_grace.DEFAULT_SECS
  ):
    """
    Args:
      module: dotted name to import before the first fork, or '' for a new
        Python for each command.
      log: str, path of the fork server's own log.
      lock: file; it stays open until the last process is gone.
      stop_grace_secs: float, train's.
    """
    super().__init__()
    self._log = log
    self._client = fork_client.ForkServerClient(
      module,
      log,
      os.environ,
      'the trials',
      kept_fds=[lock.fileno()],
      grace_secs=stop_grace.for_orphans(stop_grace_secs),
    )
    self.signals = self._client.signals

  def __enter__(self):
    # The log covers only this run.
    open(self._log, 'wb', opener=files.no_follow).close()
    self._client.__enter__()
    return self

  def __exit__(self, *error):
    self._client.__exit__(*error)

  def stop(self, signum, grace_secs):
    if not self._client.is_ready:
      # The import is not done: no command has begun, and none will.
      self._client.kill()
      return self._give_up()
    return super().stop(signum, grace_secs)

  def _begin(self, command):
    self._client.start(command.name, command.argv, command.env, command.log)
    return _Running(command, time.monotonic() + command.limit.secs)

  def _turn(self, secs=math.inf):
    self._end_overdue()
    first = min(running.deadline for running in self._running.values())
    secs = max(0.0, min(secs, first - time.monotonic()))
    ended = self._client.turn(None if secs == math.inf else secs)
    return [(name, self._note_end(name, code)) for name, code in ended]

  def _tell(self, signum, grace_secs):
    # A second signal would mean "leave at once".
    untold = [name for name, one in self._running.items() if not one.is_late]
    self._client.signal(untold, signum)
    for running in self._running.values():
      running.deadline = math.inf  # From now on, `stop` decides.

  def _kill(self, signum):
    self._client.signal(self._running, signal.SIGKILL)

  def _end_overdue(self):
    """Tells overdue commands to leave, and kills those that do not."""
    now = time.monotonic()
    for name, running in self._running.items():
      if now < running.deadline:
        continue
      if running.is_late:
        self._client.signal([name], signal.SIGKILL)
        running.deadline = math.inf
      else:
        self._client.signal([name], signal.SIGTERM)
        running.is_late = True
        running.deadline = now + running.command.limit.grace_secs

  def _note_end(self, name, code):
    running = self._running.pop(name)
    command = running.command
    return command.limit.note(command.log, code) if running.is_late else code
