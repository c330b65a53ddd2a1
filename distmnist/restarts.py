"""Who is started again, and when. Pure: starts nothing, and reads no clock.

- A task that failed, unless its exit code says that it would fail again, at
  most `max_restarts` times within a window of time;
- without a ps all the others with it: they hold the variables together;
- with the chief whoever has ended already: the last steps may be done again,
  and the ps has to be there for them;
- all that ran, where their fork server died: it has restarts of its own.

Once the chief has ended with 0 the training is complete, and nobody is. A
worker that is out of restarts is let go instead of ending the run, as long as
`min_workers` are left.
"""

import dataclasses
import math
import signal

from distmnist import cli
from distmnist import tasks as tasks_lib

# From a failure to the restart: doubles with each one, and begins anew after a
# task has run for a while.
FIRST_BACKOFF_SECS = 0.1
MAX_BACKOFF_SECS = 10.0
STEADY_SECS = 60.0

# These would come again, and the task has said what to do.
FINAL_CODES = (cli.FAILED, cli.WRONG_COMMAND_LINE)
_SERVER = 'the fork server'


@dataclasses.dataclass(frozen=True)
class Failure:
  """A task's end with anything but exit code 0; code -n is signal n."""

  task: object
  code: int
  num_restarts: int = 0

  @property
  def cause(self):
    return describe_end(self.code)

  @property
  def exit_code(self):
    return 128 - self.code if self.code < 0 else self.code

  def __str__(self):
    cause = self.cause if self.code < 0 else f'ended with {self.cause}'
    return f'{self.task.name} ({self.task.address}) {cause}'


def describe_end(code):
  """Returns 'exit code 3', or 'killed by SIGKILL' for -9 (str)."""
  if code < 0:
    return f'killed by {signal.Signals(-code).name}'
  return f'exit code {code}'


@dataclasses.dataclass(frozen=True)
class Limits:
  """What a run bears.

  Attributes:
    max_restarts: int, of each task within `window_secs`.
    window_secs: float, seconds; 0 counts over the whole run.
    min_workers: int, the run goes on with so many workers, the chief among
      them; None ends it with the first task that is lost for good.
  """

  max_restarts: int = 0
  window_secs: float = 0.0
  min_workers: int | None = None


NO_LIMITS = Limits()


def from_job(job):
  """Returns the Limits that a tasks.Job asks for."""
  return Limits(job.max_restarts, job.restart_window_secs, job.min_workers)


class _Budget:
  """The restarts of one task, or of the fork server."""

  def __init__(self, limits):
    self._limits = limits
    self._times = []
    self._backoff_secs = FIRST_BACKOFF_SECS
    self.total = 0

  def take(self, start_time, now):
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


class Record:
  """What is known of a task that was started.

  Attributes:
    task: tasks.Task.
    attempt: int, 0 before the first.
    is_running: bool.
    code: int, of the last attempt once it has ended, else None.
    restart_time: float, set while it waits to start again.
    note: str, why it is started again.
    is_let_go: whether the run goes on without it.
  """

  def __init__(self, task, limits):
    self.task = task
    self.budget = _Budget(limits)
    self.attempt = 0
    self.start_time = 0.0
    self.is_running = False
    self.code = None
    self.restart_time = None
    self.note = ''
    self.is_let_go = False

  @property
  def is_left(self):
    return self.is_running or self.restart_time is not None

  @property
  def is_done(self):
    return self.code == 0 and not self.is_left

  @property
  def is_worker(self):
    return self.task.job_name == 'worker'

  def restart_at(self, restart_time, note):
    self.restart_time, self.note = restart_time, note


class RestartPolicy:
  """Times are in seconds, of any clock.

  Attributes:
    failure: Failure of the first task that failed for good, or None.
    records: dict, name -> Record.
  """

  def __init__(self, limits, say):
    """
    Args:
      limits: Limits.
      say: callable that takes a line about a restart.
    """
    self._limits = limits
    self._say = say
    self._server = _Budget(limits)
    self.failure = None
    self.records = {}

  def add(self, task):
    """Takes a tasks.Task in; returns its Record."""
    self.records[task.name] = Record(task, self._limits)
    return self.records[task.name]

  def note_start(self, record, now):
    record.attempt += 1
    record.start_time = now
    record.is_running, record.restart_time = True, None

  def note_end(self, record, code, now, is_told=False, may_restart=True):
    """Decides what a task's end means for the run.

    Args:
      record: Record.
      code: int, the exit code, or -n after signal n.
      now: float.
      is_told: whether it was told to end, as all are: nothing is decided.
      may_restart: whether we were not told to end ourselves.

    Returns:
      list of tasks.Task to be killed at once, as they start again with it.
    """
    is_killed_to_restart = record.restart_time is not None
    record.is_running, record.code = False, code
    if is_told or self.failure:
      return []
    failure = Failure(record.task, code, record.budget.total)
    if self._is_complete:
      self._note_complete(record, failure)
    elif code in FINAL_CODES:
      self.failure = failure
    elif code and not is_killed_to_restart:
      return self._plan_restart(record, failure, now, may_restart)
    return []

  def note_server_death(self, cause, start_time, now):
    """The fork server is gone, and all that ran with it.

    Args:
      cause: str.
      start_time: float, when it was started.
      now: float.

    Returns:
      bool, whether a new one is to be started, for what `take_due` gives.
    """
    lost = [r for r in self.records.values() if r.is_running]
    for record in lost:
      record.is_running, record.code = False, -signal.SIGKILL
    if self._is_complete:
      self._say(f'{_SERVER} has died ({cause}): the training is complete')
      self.cancel()
      return True
    taken = self._server.take(start_time, now)
    if taken is None:
      return False
    number, secs = taken
    note = self._number(number)
    self._say(
      f'{_SERVER} has died ({cause}), and its tasks with it: {note} of all'
      f' in {secs:g} s'
    )
    for record in lost:
      record.restart_at(now + secs, f'{_SERVER} died: {note}')
    return True

  def take_due(self, now):
    """Returns the Records to start; none before all of them have ended."""
    waiting = self.waiting
    if any(record.is_running for record in waiting):
      return []
    due = [record for record in waiting if record.restart_time <= now]
    if any(record.task.name == tasks_lib.CHIEF for record in due):
      for record in self.records.values():
        if record.is_done:
          record.restart_at(now, f'started again with {tasks_lib.CHIEF}')
          self._say(f'{record.task.name} is {record.note}')
          due.append(record)
    return due

  def compute_wait_secs(self, now):
    """Seconds (float) until `take_due` may give something; may be inf."""
    if any(record.is_running for record in self.waiting):
      return math.inf
    times = [record.restart_time for record in self.waiting]
    return max(0.0, min(times, default=math.inf) - now)

  def cancel(self):
    """Nobody is started again."""
    for record in self.records.values():
      record.restart_time = None

  @property
  def waiting(self):
    """The Records (list) that wait to start again."""
    return [r for r in self.records.values() if r.restart_time is not None]

  @property
  def _is_complete(self):
    chief = self.records.get(tasks_lib.CHIEF)
    bears_losses = self._limits.max_restarts or self._limits.min_workers
    return bool(bears_losses and chief and chief.code == 0)

  def _note_complete(self, record, failure):
    if record.task.name == tasks_lib.CHIEF:
      for waiting in self.waiting:
        name = waiting.task.name
        self._say(f'{name} is not restarted: the training is complete')
      self.cancel()
    elif failure.code:
      self._say(f'{failure}: not restarted, as the training is complete')

  def _plan_restart(self, record, failure, now, may_restart):
    if not may_restart and self._limits.max_restarts:
      return []
    taken = record.budget.take(record.start_time, now)
    if taken is None:
      self._lose(record, failure)
      return []
    number, secs = taken
    note = self._number(number)
    record.restart_at(now + secs, note)
    has_ps = any(r.task.job_name == 'ps' for r in self.records.values())
    others = []
    if not has_ps:
      others = [r for r in self.records.values() if r is not record]
    with_all = ', with all other workers' if others else ''
    self._say(f'{failure}: {note} in {secs:g} s{with_all}')
    to_kill = [other.task for other in others if other.is_running]
    for other in others:
      other.restart_at(now + secs, f'started again with {record.task.name}')
    return to_kill

  def _lose(self, record, failure):
    """A task is lost for good: the run goes on without it, or fails."""
    left = [
      r
      for r in self.records.values()
      if r.is_worker and (r.is_left or r.is_done)
    ]
    is_chief = record.task.name == tasks_lib.CHIEF
    is_needed = is_chief or not record.is_worker
    if (
      is_needed
      or self._limits.min_workers is None
      or len(left) < self._limits.min_workers
    ):
      self.failure = failure
      return
    record.is_let_go = True
    plural = 's' if len(left) > 1 else ''
    self._say(
      f'{failure}: the run goes on without it, with {len(left)}'
      f' worker{plural} (--min_workers={self._limits.min_workers})'
    )

  def _number(self, number):
    return f'restart {number} of {self._limits.max_restarts}'
