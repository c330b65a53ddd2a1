"""Starts, watches, restarts and ends tasks on a host.

Each task has one log file, the first failure is remembered, and nothing is left
behind: all processes belong to a Host (host.py). On this machine that
is a fork server, which ends them when the launcher goes, even by kill -9. As
their parent it sends their signals, so that none can hit another process under
an old pid. Each attempt at a task has the same address and appends to the same
log. restart_policy.py decides what restarts.
"""

from __future__ import annotations

import enum
import functools
import logging
import signal
import time
from collections.abc import Callable, Iterable, Sequence

from distmnist.common import cli, command_line, stop_grace
from distmnist.launching import host as host_lib
from distmnist.launching import jobs, run_record
from distmnist.launching.screen import task_logs
from distmnist.launching.supervisor import failures, restart_policy
from distmnist.launching.supervisor.task_record import TaskRecord
from distmnist.storage import retries

TICK_SECS = 0.1
_log = logging.getLogger(__name__)

# Called with a task's name, its pid (None elsewhere) and the attempt's number.
OnStart = Callable[[str, int | None, int], None]


class _State(enum.Enum):
  """The states of a group."""

  RUNNING = 'those that fail start again, as often as they may'
  RESTARTING = 'all end in order, to start again together'
  STOPPING = 'all end in order, for good'


class TaskGroup:
  """The tasks that run. A context: leaving it ends all of them.

  Attributes:
    records: those of the tasks that were started.
    signals: what this process received; see Host.
    is_cut_short: whether another signal came during `stop`.
  """

  def __init__(
    self,
    host: host_lib.Host,
    logs_dir: str,
    limits: restart_policy.Limits = restart_policy.NO_LIMITS,
    on_tick: Callable[[], None] = lambda: None,
    on_start: OnStart = lambda name, pid, attempt: None,
    stop_grace_secs: float = stop_grace.DEFAULT_SECS,
    record: run_record.RunRecord | None = None,
  ) -> None:
    """
    Args:
      host: opened and closed by the group.
      logs_dir: an existing folder.
      limits: when a task restarts.
      on_tick: called every TICK_SECS while we wait.
      on_start: called when a task has begun.
      stop_grace_secs: how long a task that was told to stop has until it forces
        its own exit.
      record: told which tasks start and end, or None.
    """
    self._host, self._record = host, record
    self._logs_dir = logs_dir
    self._logs = task_logs.AttemptLogs(logs_dir)
    self._policy = restart_policy.RestartPolicy(limits)
    self._stop_grace_secs = stop_grace_secs
    self._on_tick, self._on_start = on_tick, on_start
    self._state = _State.RUNNING
    self._host_time = time.monotonic()
    self._to_end: list[jobs.Task] = []  # With a task that could not be started.
    self._num_noticed = 0
    self._told: dict[str, int] = {}  # name -> the attempt that was told to end
    self.is_cut_short = False
    self.records = self._policy.records
    self.signals = host.signals

  def __enter__(self) -> TaskGroup:
    self._host.__enter__()
    return self

  def __exit__(self, *error: object) -> None:
    self._host.__exit__(*error)

  @property
  def failure(self) -> failures.Failure | None:
    """The Failure of the first task that failed for good, or None.

    What fails after `stop` is our doing, and is none.
    """
    return self._policy.failure

  def start(self, task: jobs.Task) -> None:
    """Requests the first attempt at a task.

    Raises:
      OSError: its log cannot be written.
    """
    self._start(self._policy.add(task))

  def wait(
    self, tasks: Sequence[jobs.Task], timeout_secs: float = float('inf')
  ) -> list[jobs.Task]:
    """Waits for `tasks` to end; returns those that still run.

    A task that is to restart counts as running. Some may be left: it ends early
    on the first failure, on a signal to this process, and after timeout_secs.

    Raises:
      cli.RunError: the host cannot start tasks, or it has died and is out of
        restarts.
    """
    return self._wait(lambda: self.records.find_left(tasks), timeout_secs)

  def stop(self, signum: int = signal.SIGTERM) -> list[jobs.Task]:
    """Ends all tasks: the workers first, as their last checkpoint needs the ps.

    A task that has not left after its grace is killed; if another signal comes,
    all are killed at once. Failures meanwhile are our doing and are not noted.

    Returns:
      The tasks that had to be killed.
    """
    self._state = _State.STOPPING
    self.records.cancel_restarts()
    self._num_noticed = min(1, len(self.signals))
    if not self._host.is_ready:
      # The import still runs: no task has started, and none will.
      self._host.kill()
    return self._end_in_order(signum)

  def discard(self, task: jobs.Task) -> None:
    """Forgets a task that has ended, and removes its log."""
    del self.records[task.name]
    self._logs.remove(task)

  def last_lines(self, task: jobs.Task, num_lines: int = 10) -> list[str]:
    """Returns the last lines of a task's last attempt."""
    return self._logs.last_lines(task, num_lines)

  # ---- The loop ----

  def _wait(
    self, find_left: Callable[[], list[jobs.Task]], timeout_secs: float
  ) -> list[jobs.Task]:
    """Waits until `find_left()` is empty; returns its value; see `wait`."""
    deadline = time.monotonic() + timeout_secs
    while (left := find_left()) and not self._is_disturbed():
      secs = deadline - time.monotonic()
      self._turn(max(0.0, min(secs, TICK_SECS)))
      # If this process was suspended (Ctrl-Z), they may have ended meanwhile.
      if secs <= 0 and len(find_left()) == len(left):
        break
    return left

  def _is_disturbed(self) -> bool:
    failed = self.failure is not None and self._state is _State.RUNNING
    return failed or len(self.signals) > self._num_noticed

  def _turn(self, secs: float) -> None:
    """Waits for something to happen, at most `secs`; does what follows."""
    to_end = self._poll(secs)
    is_running = self._state is _State.RUNNING
    if to_end and is_running and self._policy.restarts_together:
      self._state = _State.RESTARTING
      try:
        self._end_in_order(signal.SIGTERM)
      finally:
        self._state = _State.RUNNING
    elif to_end:
      self._signal(to_end, signal.SIGKILL)
    if self._state is _State.RUNNING and not self._is_disturbed():
      for record in self.records.take_due(time.monotonic()):
        self._start(record)
    if self._record:
      self._record.update(self.records)
    self._on_tick()

  def _poll(self, secs: float) -> list[jobs.Task]:
    """Notes what has begun and ended; returns the Tasks to end with that."""
    secs = min(secs, self.records.compute_wait_secs(time.monotonic()))
    to_end, self._to_end = self._to_end, []
    try:
      ended = self._host.poll(secs)
      self._note_begun()
      for name, code in ended:
        reason = self._host.reasons.pop(name, '')
        to_end += self._note_end(self.records[name], code, reason)
    except host_lib.HostDiedError as error:
      self._note_begun()
      self._note_host_death(error)
    return to_end

  def _note_begun(self) -> None:
    while self._host.begun:
      name, pid = self._host.begun.pop(0)
      if name in self.records:
        self._on_start(name, pid, self.records[name].attempt)

  def _note_end(
    self, record: TaskRecord, code: int | None, reason: str
  ) -> list[jobs.Task]:
    record.reason = reason
    return self._policy.note_end(
      record,
      code,
      time.monotonic(),
      is_told=self._state is _State.STOPPING,
      may_restart=not self.signals,
    )

  def _note_host_death(self, error: host_lib.HostDiedError) -> None:
    """Restarts the host, and its tasks with it, where that is allowed.

    Raises:
      host_lib.HostDiedError: it is out of restarts, or must not restart.
    """
    if self._state is _State.STOPPING:
      for record in self.records.running:
        record.is_running = False
        if self._host.is_ready:  # Else none had begun.
          record.code = -signal.SIGKILL
      return
    now = time.monotonic()
    may_restart = not self.signals and self._policy.note_server_death(
      error.cause, self._host_time, now
    )
    if self._record:  # Before the next attempts begin, in this same turn.
      self._record.update(self.records)
    if not may_restart:
      raise error
    if self.records.waiting:
      self._restart_host()
      self._host_time = time.monotonic()
      self._on_start(self._host.name, self._host.pid, 2)

  def _restart_host(self) -> None:
    """Makes the host ready again, which the system may refuse for a while.

    Raises:
      cli.PassingError: it still does, or this launcher was told to end.
    """
    for secs in (*retries.WAITS_SECS, None):
      try:
        self._host.restart()
        return
      except cli.PassingError as error:
        if secs is None or self.signals:
          raise
        _log.info(f'{error}: trying again in {secs:g} s')
        self._host.poll(secs)

  # ---- One task, or all ----

  def _start(self, record: TaskRecord) -> None:
    task = record.task
    self._policy.note_start(record, time.monotonic())
    try:
      path = self._logs.begin(task, record.note)
    except OSError as error:
      if not cli.is_passing(error):
        raise
      reason = f'not started, as its log cannot be written: {error.strerror}'
      self._to_end += self._note_end(record, cli.NOT_STARTED, reason)
      return
    folder = command_line.find_value(task.argv, 'logdir') or self._logs_dir
    request = host_lib.Request(
      task.name,
      task.argv,
      record.env,
      path,
      # Only a task that serves needs hiding; others may need the network.
      is_isolated=task.port is not None,
      title=f'distmnist {task.name} {folder}',
    )
    self._host.start(request)

  def _end_in_order(self, signum: int) -> list[jobs.Task]:
    """Ends what runs, the ps last; returns the Tasks that had to be killed."""
    killed = []
    jobs = {record.task.job_name for record in self.records.values()}
    for is_ps in (False, True):
      grace_secs = stop_grace.for_job(is_ps, jobs, self._stop_grace_secs)
      find_left = functools.partial(self._find_running, is_ps)
      self._tell(find_left(), signum)
      left = self._wait(find_left, grace_secs)
      if self._is_disturbed():
        if self._state is _State.RESTARTING:
          break  # `stop` comes next, and gives them their time.
        self.is_cut_short = True
        left = [record.task for record in self.records.running]
      self._signal(left, signal.SIGKILL)
      killed += left
      while any(record.task in left for record in self.records.running):
        self._turn(TICK_SECS)
    return killed

  def _find_running(self, is_ps: bool) -> list[jobs.Task]:
    """Returns the running tasks to end: the ps if `is_ps`, else all others."""
    return [
      record.task
      for record in self.records.running
      if (record.task.job_name == 'ps') == is_ps and self._must_end(record)
    ]

  def _must_end(self, record: TaskRecord) -> bool:
    # Where it can, an evaluator stays while the others start again.
    is_for_good = self._state is _State.STOPPING
    return (
      is_for_good or self._host.ends_as_one or record.restart_time is not None
    )

  def _tell(self, tasks: Sequence[jobs.Task], signum: int) -> None:
    """Sends a signal, once: a second one means to leave at once."""
    attempts = {task.name: self.records[task.name].attempt for task in tasks}
    untold = [t for t in tasks if self._told.get(t.name) != attempts[t.name]]
    self._told |= attempts
    self._signal(untold, signum)

  def _signal(self, tasks: Iterable[jobs.Task], signum: int) -> None:
    self._host.signal([task.name for task in tasks], signum)
