"""Starts tasks on a host, watches them, restarts them, ends them.

One log file a task, the first failure remembered, and nothing left behind:
all processes belong to a TaskHost (launching/task_host.py). On this machine it
is a fork server that ends them when the launcher goes, even by kill -9. It is
their parent and sends their signals, so that none can hit a stranger under an
old pid. What is started again, on the same address and into the same log, is
for launching/restart_policy.py to decide.
"""

import signal
import time

from distmnist.common import cli
from distmnist.launching import jobs as jobs_lib
from distmnist.launching import (
  restart_limits,
  restart_policy,
  stop_grace,
  task_host,
  task_logs,
)

TICK_SECS = 0.1


class TaskGroup:
  """The tasks that run. A context: its end is the end of all of them.

  Attributes:
    signals: list of int, what this process received; see TaskHost.
    failure: Failure of the first task that failed for good before `stop`, or
      None.
  """

  def __init__(
    self,
    host,
    logs_dir,
    limits=restart_limits.NO_LIMITS,
    on_tick=lambda: None,
    on_start=lambda name, pid, attempt: None,
    stop_grace_secs=stop_grace.DEFAULT_SECS,
  ):
    """Makes a group without tasks.

    Args:
      host: task_host.TaskHost, which the group opens and closes.
      logs_dir: str, an existing folder.
      limits: restart_limits.Limits, when a task is started again.
      on_tick: callable, called every TICK_SECS while we wait.
      on_start: callable(name, pid, attempt), called when a task has begun.
      stop_grace_secs: float, after which a task that was told to leave ends
        itself by force.
    """
    self._host = host
    self._logs_dir = logs_dir
    self._logs = task_logs.AttemptLogs(logs_dir)
    self._stop_grace_secs = stop_grace_secs
    self._on_tick = on_tick
    self._on_start = on_start
    self._limits = limits
    self._policy = restart_policy.RestartPolicy(limits)
    self._records = self._policy.records
    self._is_stopping = False
    self._is_restarting = False
    self._num_noticed = 0
    self._host.on_pid = self._note_pid
    self.signals = self._host.signals

  def __enter__(self):
    self._host.__enter__()
    self._host_time = time.monotonic()
    return self

  def __exit__(self, *error):
    self._host.__exit__(*error)

  def start(self, task):
    """Asks for a task.

    Raises:
      OSError: its log cannot be written.
    """
    self._start(self._policy.add(task))

  def wait(self, tasks, timeout_secs=float('inf')):
    """Waits for the end of `tasks`; returns those that still run.

    What is to be started again counts as one that runs. Some may be left: it
    returns early on the first failure, on a signal to this process, and after
    timeout_secs.

    Raises:
      cli.RunError: the host cannot start tasks, or it has died and is out of
        restarts.
    """
    records = self._records
    return self._wait(
      lambda: [
        t for t in tasks if t.name in records and records[t.name].is_left
      ],
      timeout_secs,
    )

  def stop(self, signum=signal.SIGTERM):
    """Ends all tasks: the workers first, as their last checkpoint needs the ps.

    What has not left after its grace is killed; all are at once if another
    signal comes. Failures that happen meanwhile are our doing: not noted.

    Returns:
      list of Task that had to be killed.
    """
    self._is_stopping = True
    self._policy.cancel()
    self._num_noticed = min(1, len(self.signals))
    if not self._host.is_ready:
      # The import is still on: no task has started, nor will any.
      self._host.kill()
    return self._end_in_order(signum)

  def _end_in_order(self, signum):
    """Ends what runs, the ps last; returns the Tasks that had to be killed."""
    killed = []
    jobs = {record.task.job_name for record in self._records.values()}
    for is_ps in (False, True):
      grace_secs = stop_grace.for_job(is_ps, jobs, self._stop_grace_secs)

      def find_left(is_ps=is_ps):
        return [t for t in self._running if (t.job_name == 'ps') == is_ps]

      self._signal(find_left(), signum)
      left = self._wait(find_left, grace_secs)
      if self._is_disturbed():
        left = self._running
      self._signal(left, signal.SIGKILL)
      killed += left
      while any(task in left for task in self._running):
        self._turn(TICK_SECS)
    return killed

  def _wait(self, find_left, timeout_secs):
    """Waits until `find_left()` is empty; returns what it is; see `wait`."""
    deadline = time.monotonic() + timeout_secs
    while left := find_left():
      secs = deadline - time.monotonic()
      if secs <= 0 or self._is_disturbed():
        break
      self._turn(min(secs, TICK_SECS))
    return left

  def discard(self, task):
    """Forgets a task that has ended, and removes its log."""
    del self._records[task.name]
    self._logs.remove(task)

  def is_done(self, task):
    """Whether it has ended with 0."""
    return self._records[task.name].is_done

  def is_restarted(self, task):
    """Whether it was started more than once."""
    return self._records[task.name].attempt > 1

  def last_lines(self, task, num_lines=10):
    """Returns the last lines (list of str) of a task's last attempt."""
    return self._logs.last_lines(task, num_lines)

  @property
  def failure(self):
    return self._policy.failure

  def find_failure(self, name):
    """Returns the failures.Failure of a task that would fail again, or None."""
    record = self._records.get(name)
    is_final = record and record.code in cli.FINAL_CODES
    return record.failure if is_final else None

  def has_lost_steps(self, task):
    """Whether it was told to leave, and says that not all is saved."""
    return self._records[task.name].code == cli.NOT_SAVED

  @property
  def _running(self):
    return [r.task for r in self._records.values() if r.is_running]

  def _is_disturbed(self):
    is_ending = self._is_stopping or self._is_restarting
    failed = self.failure is not None and not is_ending
    return failed or len(self.signals) > self._num_noticed

  def _turn(self, secs):
    secs = min(secs, self._policy.compute_wait_secs(time.monotonic()))
    to_end = []
    try:
      for name, code in self._host.turn(secs):
        record = self._records[name]
        record.reason = self._host.reasons.pop(name, '')
        to_end += self._policy.note_end(
          record,
          code,
          time.monotonic(),
          is_told=self._is_stopping,
          may_restart=not self.signals,
        )
    except task_host.HostDiedError as error:
      self._note_host_death(error)
    if to_end:
      self._end_to_restart(to_end)
    if not self._is_disturbed() and not self._is_restarting:
      for record in self._policy.take_due(time.monotonic()):
        self._start(record)
    self._on_tick()

  def _end_to_restart(self, tasks):
    if not self._limits.restart_together:
      self._signal(tasks, signal.SIGKILL)
      return
    self._is_restarting = True
    try:
      self._end_in_order(signal.SIGTERM)
    finally:
      self._is_restarting = False

  def _note_host_death(self, error):
    if self._is_stopping:
      for record in self._records.values():
        record.is_running = False
      return
    now = time.monotonic()
    if self.signals or not self._policy.note_server_death(
      error.cause, self._host_time, now
    ):
      raise error
    if self._policy.waiting:
      self._host.restart()
      self._host_time = time.monotonic()
      self._on_start(self._host.name, self._host.pid, 2)

  def _note_pid(self, name, pid):
    if name in self._records:
      self._on_start(name, pid, self._records[name].attempt)

  def _start(self, record):
    task = record.task
    self._policy.note_start(record, time.monotonic())
    path = self._logs.begin(task, record.note)
    folder = jobs_lib.flag_value(task.argv, 'logdir') or self._logs_dir
    self._host.start(
      task.name,
      task.argv,
      record.env,
      path,
      # Only what serves has something to hide; others may need the network.
      is_isolated=task.port is not None,
      title=f'distmnist {task.name} {folder}',
    )

  def _signal(self, tasks, signum):
    self._host.signal([task.name for task in tasks], signum)
