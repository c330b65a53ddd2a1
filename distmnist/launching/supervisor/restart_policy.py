"""Decides which tasks restart, and when the run is given up.

Pure: it starts nothing and reads no clock. It is given each start and end with
its time, and answers what to kill and what to start, so that its test needs no
process.

- A failed task restarts at most `max_restarts` times within a window of time,
  unless its exit code says that it would fail again;
- with the chief, tasks that have already ended restart too: the last steps may
  be repeated, and need the ps;
- if the fork server dies, all tasks that ran restart; it has its own budget;
- where tasks can only start together (`restart_together`), they always do.

Once the chief has ended with 0, training is complete and no task restarts. A
worker that is out of restarts is let go instead of ending the run, as long as
`min_workers` are left.
"""

from __future__ import annotations

import dataclasses
import logging
import math
import signal

from distmnist.common import cli
from distmnist.common.names import CHIEF
from distmnist.launching import jobs
from distmnist.launching.supervisor import failures
from distmnist.launching.supervisor.task_record import TaskRecord, TaskRecords

_log = logging.getLogger(__name__)

_SERVER = 'the fork server'
# From a failure to the restart: doubles with each restart, and starts over
# after a task has run for STEADY_SECS.
FIRST_BACKOFF_SECS = 0.1
MAX_BACKOFF_SECS = 10.0
STEADY_SECS = 60.0


@dataclasses.dataclass(frozen=True)
class Limits:
  """The failures that a run tolerates.

  Attributes:
    max_restarts: of each task within `window_secs`.
    window_secs: seconds; 0 counts over the whole run.
    min_workers: how many workers are enough for the run to go on, the chief
      included; None ends it with the first task that is lost for good.
    restart_together: whether a task restarts only with all others, once they
      have left in order; `max_restarts` then counts for all together.
  """

  max_restarts: int = 0
  window_secs: float = 0.0
  min_workers: int | None = None
  restart_together: bool = False


NO_LIMITS = Limits()


def from_job(job: jobs.Job) -> Limits:
  """Returns what a job asks for."""
  return Limits(job.max_restarts, job.restart_window_secs, job.min_workers)


class Budget:
  """The restarts of one task, or of the fork server."""

  def __init__(self, limits: Limits) -> None:
    self._limits = limits
    self._times: list[float] = []
    self._backoff_secs = FIRST_BACKOFF_SECS
    self.total = 0

  def take(self, start_time: float, now: float) -> tuple[int, float] | None:
    """Returns (number within the window, seconds to wait); None if spent."""
    window_secs = self._limits.window_secs or math.inf
    self._times = [t for t in self._times if now - t < window_secs]
    if len(self._times) >= self._limits.max_restarts:
      return None
    if now - start_time >= STEADY_SECS:
      self._backoff_secs = FIRST_BACKOFF_SECS
    secs = self._backoff_secs
    self._backoff_secs = min(MAX_BACKOFF_SECS, 2 * secs)
    self._times.append(now)
    self.total += 1
    return len(self._times), secs


class RestartPolicy:
  """The policy of one run; times are in seconds, of any clock.

  Attributes:
    restarts_together: whether all tasks restart with one.
    failure: that of the first task that failed for good, or None.
  """

  def __init__(self, limits: Limits) -> None:
    self._limits = limits
    self.restarts_together = limits.restart_together
    self._server = Budget(limits)
    self.failure: failures.Failure | None = None
    self.records = TaskRecords()

  def add(self, task: jobs.Task) -> TaskRecord:
    """Adds a task; returns its record."""
    record = self.records[task.name] = TaskRecord(task, Budget(self._limits))
    if self.restarts_together and task.is_member:
      record.budget = self._server
    return record

  def note_start(self, record: TaskRecord, now: float) -> None:
    record.attempt += 1
    record.start_time = now
    record.is_running, record.restart_time = True, None

  def note_end(
    self,
    record: TaskRecord,
    code: int | None,
    now: float,
    is_told: bool = False,
    may_restart: bool = True,
  ) -> list[jobs.Task]:
    """Decides what a task's end means for the run.

    Args:
      code: the exit code, or -n after signal n; None if it is lost though it
        still runs.
      is_told: whether all tasks were told to end; then nothing is decided.
      may_restart: False once this launcher itself was told to end.

    Returns:
      The tasks to end, as they restart with it.
    """
    is_killed_to_restart = record.restart_time is not None
    record.is_running = code is None
    code = record.code = cli.LOST if code is None else code
    if is_told or self.failure:
      return []
    failure = record.failure
    if self._is_complete:
      self._note_complete(record, failure)
    elif code in cli.FINAL_CODES:
      self._fail(record, failure)
    elif code and not is_killed_to_restart:
      return self._plan_restart(record, failure, now, may_restart)
    return []

  def note_server_death(
    self, cause: str, start_time: float, now: float
  ) -> bool:
    """Decides what happens once the fork server and its tasks are gone.

    `cause` says how it ended, `start_time` when it started.
    Returns whether a new one is to start, for the tasks that are due.
    """
    lost = self.records.running
    for record in lost:
      record.is_running, record.code = False, -signal.SIGKILL
      record.reason = ''  # Not that of an attempt before.
    if self._is_complete:
      _log.info(f'{_SERVER} has died ({cause}): the training is complete')
      self.records.cancel_restarts()
      return True
    taken = self._server.take(start_time, now)
    if taken is None:
      return False
    number, secs = taken
    note = _number(number, self._limits)
    _log.info(
      f'{_SERVER} has died ({cause}), and its tasks with it: {note} of all'
      f' in {secs:g} s'
    )
    for record in lost:
      record.restart_at(now + secs, f'{_SERVER} died: {note}')
    return True

  @property
  def _is_complete(self) -> bool:
    chief = self.records.get(CHIEF)
    bears_losses = self._limits.max_restarts or self._limits.min_workers
    return bool(bears_losses and chief and chief.code == 0)

  def _note_complete(
    self, record: TaskRecord, failure: failures.Failure
  ) -> None:
    if record.task.name == CHIEF:
      for waiting in self.records.waiting:
        name = waiting.task.name
        _log.info(f'{name} is not restarted: the training is complete')
      self.records.cancel_restarts()
    elif failure.code:
      _log.info(f'{failure}: not restarted, as the training is complete')

  def _plan_restart(
    self,
    record: TaskRecord,
    failure: failures.Failure,
    now: float,
    may_restart: bool,
  ) -> list[jobs.Task]:
    if not may_restart and self._limits.max_restarts:
      return []
    taken = record.budget.take(record.start_time, now)
    if taken is None:
      self._lose(record, failure)
      return []
    number, secs = taken
    note = _number(number, self._limits)
    record.restart_at(now + secs, note)
    is_together = self.restarts_together
    others = []
    if record.task.is_member and is_together:
      members = [r for r in self.records.values() if r.task.is_member]
      others = [r for r in members if r is not record]
    with_all = ', with all other tasks' if others else ''
    _log.info(f'{failure}: {note} in {secs:g} s{with_all}')
    to_end = [r.task for r in (record, *others) if r.is_running]
    for other in others:
      other.restart_at(now + secs, note)
    return to_end

  def _lose(self, record: TaskRecord, failure: failures.Failure) -> None:
    """Handles a task lost for good: the run goes on without it, or fails."""
    num_left = len(self.records.left_workers)
    is_chief = record.task.name == CHIEF
    is_needed = is_chief or not record.is_worker
    if (
      is_needed
      or self._limits.min_workers is None
      or num_left < self._limits.min_workers
    ):
      self._fail(record, failure)
      return
    plural = 's' if num_left > 1 else ''
    _log.info(
      f'{failure}: the run goes on without it, with {num_left}'
      f' worker{plural} (--min_workers={self._limits.min_workers})'
    )

  def _fail(self, record: TaskRecord, failure: failures.Failure) -> None:
    """Fails the run, unless it can go on without the task."""
    if record.task.job_name == 'evaluator':
      _log.info(f'{failure}: the run goes on without it; see its log')
    else:
      self.failure = failure


def _number(number: int, limits: Limits) -> str:
  return f'restart {number} of {limits.max_restarts}'
