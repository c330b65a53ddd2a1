"""Starts the attempts at tasks on a host, and learns how they end.

Each attempt at a task has the same address and appends to the same log.
restart_policy.py decides what an end means for the run, task_group.py when all
tasks are to end, and in which order.
"""

import logging
import time

from distmnist.common import cli, command_line
from distmnist.launching.screen import task_logs
from distmnist.launching.supervisor import restart_policy, task_host
from distmnist.storage import retries

_log = logging.getLogger(__name__)


class Attempts:
  """Every attempt at every task of a run.

  Attributes:
    logs: task_logs.AttemptLogs.
    policy: restart_policy.RestartPolicy, with the records of all tasks.
    records: task_record.TaskRecords, those of the policy.
  """

  def __init__(self, host, logs_dir, limits, on_start):
    """
    Args:
      host: task_host.TaskHost, opened and closed by the caller.
      logs_dir: str, an existing folder.
      limits: restart_limits.Limits, when a task is started again.
      on_start: callable(name, pid, attempt), called when a task has begun.
    """
    self._host = host
    self._logs_dir = logs_dir
    self._on_start = on_start
    self._host_time = time.monotonic()
    self._to_end = []  # With a task that could not be started.
    self.logs = task_logs.AttemptLogs(logs_dir)
    self.policy = restart_policy.RestartPolicy(limits)
    self.records = self.policy.records

  @property
  def running(self):
    """The jobs.Tasks (list) that run."""
    return [record.task for record in self.records.running]

  def find_running(self, is_ps):
    """Returns the running tasks: the ps if `is_ps`, else all others."""
    return [task for task in self.running if (task.job_name == 'ps') == is_ps]

  def start(self, task):
    """Requests the first attempt at a task; see TaskGroup.start."""
    self._start(self.policy.add(task))

  def start_due(self):
    """Requests the next attempts that are due by now."""
    for record in self.records.take_due(time.monotonic()):
      self._start(record)

  def signal(self, tasks, signum):
    self._host.signal([task.name for task in tasks], signum)

  def turn(self, secs, is_told):
    """Waits for something to happen, at most `secs` seconds.

    Args:
      secs: float.
      is_told: whether all tasks were told to end.

    Returns:
      list of jobs.Task to end, as they restart with one that has ended.

    Raises:
      task_host.HostDiedError: the host is gone, and is out of restarts or must
        not restart.
    """
    secs = min(secs, self.records.compute_wait_secs(time.monotonic()))
    to_end, self._to_end = self._to_end, []
    try:
      ended = self._host.turn(secs)
      self._note_begun()
      for name, code in ended:
        reason = self._host.reasons.pop(name, '')
        to_end += self._note_end(self.records[name], code, reason, is_told)
    except task_host.HostDiedError as error:
      self._note_begun()
      self._note_host_death(error, is_told)
    return to_end

  def _note_end(self, record, code, reason, is_told=False):
    record.reason = reason
    return self.policy.note_end(
      record,
      code,
      time.monotonic(),
      is_told,
      may_restart=not self._host.signals,
    )

  def _note_host_death(self, error, is_told):
    if is_told:
      for record in self.records.values():
        record.is_running = False
      return
    now = time.monotonic()
    if self._host.signals or not self.policy.note_server_death(
      error.cause, self._host_time, now
    ):
      raise error
    if self.records.waiting:
      self._restart_host()
      self._host_time = time.monotonic()
      self._on_start(self._host.name, self._host.pid, 2)

  def _restart_host(self):
    """Makes the host ready again, which the system may refuse for a while.

    Raises:
      cli.PassingError: it still does, or this launcher was told to end.
    """
    for secs in (*retries.WAITS_SECS, None):
      try:
        self._host.restart()
        return
      except cli.PassingError as error:
        if secs is None or self._host.signals:
          raise
        _log.info(f'{error}: trying again in {secs:g} s')
        self._host.turn(secs)

  def _note_begun(self):
    while self._host.begun:
      name, pid = self._host.begun.pop(0)
      if name in self.records:
        self._on_start(name, pid, self.records[name].attempt)

  def _start(self, record):
    task = record.task
    self.policy.note_start(record, time.monotonic())
    try:
      path = self.logs.begin(task, record.note)
    except OSError as error:
      if not cli.is_passing(error):
        raise
      reason = f'not started, as its log cannot be written: {error.strerror}'
      self._to_end += self._note_end(record, cli.NOT_STARTED, reason)
      return
    folder = command_line.find_value(task.argv, 'logdir') or self._logs_dir
    self._host.start(
      task.name,
      task.argv,
      record.env,
      path,
      # Only a task that serves needs hiding; others may need the network.
      is_isolated=task.port is not None,
      title=f'distmnist {task.name} {folder}',
    )
