"""What a launcher knows of one task: its attempts, its end, its next start."""

from distmnist.common.names import ATTEMPT
from distmnist.launching import failures, restart_limits


class TaskRecord:
  """What is known of a task that was started.

  Attributes:
    task: jobs.Task.
    budget: restart_limits.Budget, its restarts.
    attempt: int, 0 before the first.
    is_running: bool.
    code: int, of the last attempt once it has ended, else None.
    reason: str, why it has ended, where the code does not say; see TaskHost.
    restart_time: float, set while it waits to start again.
    note: str, why it is started again.
    is_let_go: whether the run goes on without it.
  """

  def __init__(self, task, limits):
    self.task = task
    self.budget = restart_limits.Budget(limits)
    self.attempt = 0
    self.start_time = 0.0
    self.is_running = False
    self.code = None
    self.reason = ''
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

  @property
  def env(self):
    """Its variables (dict), and from the second attempt on its number."""
    again = {ATTEMPT: str(self.attempt)} if self.attempt > 1 else {}
    return dict(self.task.env) | again

  @property
  def failure(self):
    """The failures.Failure of the last attempt, which has ended."""
    return failures.Failure(
      self.task, self.code, self.budget.total, self.reason
    )

  def restart_at(self, restart_time, note):
    self.restart_time, self.note = restart_time, note
