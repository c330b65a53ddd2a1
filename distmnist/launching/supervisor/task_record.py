"""Records of the tasks of a launch: attempts, ends, next starts."""

from __future__ import annotations

import logging
import math
import signal
from collections.abc import Iterable
from typing import TYPE_CHECKING

from distmnist.common import cli, signals
from distmnist.common.names import ATTEMPT, CHIEF
from distmnist.launching import jobs
from distmnist.launching.supervisor import failures

if TYPE_CHECKING:
  from distmnist.launching.supervisor import restart_policy

_log = logging.getLogger(__name__)

# Of a task that was stopped once it heeded signals, and had nothing unsaved.
_STOPPED_CODES = tuple(128 + signum for signum in signals.STOPS)


class TaskRecord:
  """The record of a task that was started.

  Attributes:
    budget: its restarts.
    attempt: 0 before the first.
    code: of the last attempt once it has ended, else None.
    reason: why it has ended, where the code does not say; see Host.
    restart_time: set while it waits to restart.
    note: why it restarts.
  """

  def __init__(self, task: jobs.Task, budget: restart_policy.Budget) -> None:
    self.task = task
    self.budget = budget
    self.attempt = 0
    self.start_time = 0.0
    self.is_running = False
    self.code: int | None = None
    self.reason = ''
    self.restart_time: float | None = None
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
    """Its variables, with the attempt's number from the second on."""
    again = {ATTEMPT: str(self.attempt)} if self.attempt > 1 else {}
    return dict(self.task.env) | again

  @property
  def failure(self) -> failures.Failure:
    """The end of the last attempt, which has ended."""
    if self.code is None:
      raise ValueError(f'{self.task.name} has not ended')
    return failures.Failure(
      self.task, self.code, self.budget.total, self.reason
    )

  def restart_at(self, restart_time: float, note: str) -> None:
    self.restart_time, self.note = restart_time, note


class TaskRecords(dict[str, TaskRecord]):
  """{name: TaskRecord} of all tasks, and which of them start next."""

  @property
  def running(self) -> list[TaskRecord]:
    """The TaskRecords whose processes run."""
    return [record for record in self.values() if record.is_running]

  @property
  def waiting(self) -> list[TaskRecord]:
    """The TaskRecords that wait to restart."""
    return [r for r in self.values() if r.restart_time is not None]

  @property
  def left_workers(self) -> list[TaskRecord]:
    """The TaskRecords of workers that run, will restart, or are done."""
    return [
      r for r in self.values() if r.is_worker and (r.is_left or r.is_done)
    ]

  def find_left(self, tasks: Iterable[jobs.Task]) -> list[jobs.Task]:
    """Returns those of `tasks` that run or will restart."""
    return [t for t in tasks if t.name in self and self[t.name].is_left]

  def take_due(self, now: float) -> list[TaskRecord]:
    """Returns the TaskRecords to start; none while a waiting one still runs.

    Tasks that are done restart with the chief.
    """
    waiting = self.waiting
    if any(record.is_running for record in waiting):
      return []
    due = [
      r for r in waiting if r.restart_time is not None and r.restart_time <= now
    ]
    if any(record.task.name == CHIEF for record in due):
      for record in self.values():
        if record.is_done:
          record.restart_at(now, f'started again with {CHIEF}')
          _log.info(f'{record.task.name} is {record.note}')
          due.append(record)
    return due

  def compute_wait_secs(self, now: float) -> float:
    """Returns the seconds until `take_due` may return any, or inf."""
    if any(record.is_running for record in self.waiting):
      return math.inf
    times = [
      r.restart_time for r in self.values() if r.restart_time is not None
    ]
    return max(0.0, min(times, default=math.inf) - now)

  def cancel_restarts(self) -> None:
    """Cancels all restarts that are planned."""
    for record in self.values():
      record.restart_time = None
