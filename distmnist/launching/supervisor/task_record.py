"""What a launcher knows about its tasks: attempts, ends, next starts."""

from __future__ import annotations

import logging
import math
import signal

from distmnist.common import cli, signals
from distmnist.common.names import ATTEMPT, CHIEF
from distmnist.launching.supervisor import failures

_log = logging.getLogger(__name__)

# Of a task that was stopped once it heeded signals, and had nothing unsaved.
_STOPPED_CODES = tuple(128 + signum for signum in signals.STOPS)


class TaskRecord:
  """What is known about a task that was started.

  Attributes:
    task: jobs.Task.
    budget: restart_policy.Budget, its restarts.
    attempt: int, 0 before the first.
    is_running: bool.
    code: int, of the last attempt once it has ended, else None.
    reason: str, why it has ended, where the code does not say; see Host.
    restart_time: float, set while it waits to restart.
    note: str, why it restarts.
  """

  def __init__(self, task, budget) -> None:
    self.task = task
    self.budget = budget
    self.attempt = 0
    self.start_time = 0.0
    self.is_running = False
    self.code = None
    self.reason = ''
    self.restart_time = None
    self.note = ''

  @property
  def is_left(self) -> bool:
    return self.is_running or self.restart_time is not None

  @property
  def is_done(self) -> bool:
    return self.code == 0 and not self.is_left

  @property
  def is_final(self) -> bool:
    """Whether it ended in a way that another attempt would only repeat."""
    return self.code in cli.FINAL_CODES

  @property
  def has_lost_steps(self) -> bool:
    """Whether it was told to leave and says that not all is saved.

    One that was killed, or is about to be, says nothing: it may have lost
    steps. So may one that was started again, for what the attempts before it
    have trained: only an exit code after a signal says that it has saved.
    """
    if self.is_running or self.code in (cli.NOT_SAVED, -signal.SIGKILL):
      return True
    return ATTEMPT in self.env and self.code not in (0, *_STOPPED_CODES)

  @property
  def is_worker(self) -> bool:
    return self.task.job_name == 'worker'

  @property
  def env(self) -> dict[str, str]:
    """Its variables (dict), with the attempt's number from the second on."""
    again = {ATTEMPT: str(self.attempt)} if self.attempt > 1 else {}
    return dict(self.task.env) | again

  @property
  def failure(self) -> failures.Failure:
    """The failures.Failure of the last attempt, which has ended."""
    return failures.Failure(
      self.task, self.code, self.budget.total, self.reason
    )

  def restart_at(self, restart_time: float, note: str) -> None:
    self.restart_time, self.note = restart_time, note


class TaskRecords(dict):
  """{name: TaskRecord} of all tasks, and which of them start next."""

  @property
  def running(self) -> list[TaskRecord]:
    """The TaskRecords (list) whose processes run."""
    return [record for record in self.values() if record.is_running]

  @property
  def waiting(self) -> list[TaskRecord]:
    """The TaskRecords (list) that wait to restart."""
    return [r for r in self.values() if r.restart_time is not None]

  @property
  def left_workers(self) -> list[TaskRecord]:
    """The TaskRecords (list) of workers that run, will restart, or are done."""
    return [
      r for r in self.values() if r.is_worker and (r.is_left or r.is_done)
    ]

  def find_left(self, tasks):
    """Returns those of `tasks`, jobs.Tasks, that run or will restart."""
    return [t for t in tasks if t.name in self and self[t.name].is_left]

  def take_due(self, now: float) -> list[TaskRecord]:
    """Returns the TaskRecords to start; none while a waiting one still runs.

    Tasks that are done restart with the chief.
    """
    waiting = self.waiting
    if any(record.is_running for record in waiting):
      return []
    due = [record for record in waiting if record.restart_time <= now]
    if any(record.task.name == CHIEF for record in due):
      for record in self.values():
        if record.is_done:
          record.restart_at(now, f'started again with {CHIEF}')
          _log.info(f'{record.task.name} is {record.note}')
          due.append(record)
    return due

  def compute_wait_secs(self, now: float) -> float:
    """Returns the seconds (float) until `take_due` may return any, or inf."""
    if any(record.is_running for record in self.waiting):
      return math.inf
    times = [record.restart_time for record in self.waiting]
    return max(0.0, min(times, default=math.inf) - now)

  def cancel_restarts(self) -> None:
    """Cancels all restarts that are planned."""
    for record in self.values():
      record.restart_time = None
