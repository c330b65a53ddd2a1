"""A trial on its way through Spark: started, read from, stopped, restarted.

The loss of an executor affects only its own trial. The agent outlives the
executor and makes the trial save; then the trial restarts elsewhere, from its
checkpoint, up to MAX_RESTARTS times. Spark itself is told to retry nothing: if
two trained in one folder, neither would be right. So a trial restarts only once
its agent is gone and Spark has given up its task.
"""

import contextlib
import dataclasses
import math
import os
import signal
import time

from distmnist.common import cli, command_line
from distmnist.common.names import SWEEP
from distmnist.launching.screen import task_logs
from distmnist.spark import barrier_job
from distmnist.sweeps import json_files, runners

MAX_RESTARTS = 3
# From the second order, which kills the trial, to the end of Spark's task.
KILL_SECS = 5.0


@dataclasses.dataclass
class SparkTrial:
  """A command that Spark runs; attributes from `key` on are of its last start.

  Attributes:
    command: runners.Command.
    number: int, how often it was started, from 1.
    is_late: whether it was told to leave because it took too long.
    key: str, what this start is called.
    job: barrier_job.Job of this start.
    connection: that of its agent, or None until the agent has connected.
    limit_time: when it has taken too long and is told to leave.
    deadline: when the agent has to be gone, once that is known.
    is_told_to_stop: whether we have told its agent to stop it.
    code: int, what it exited with, or None.
    lost: str, why it has to restart if it has no code.
  """

  command: runners.Command
  number: int = 0
  is_late: bool = False
  key: str = ''
  job: barrier_job.Job | None = None
  connection: object = None
  limit_time: float = math.inf
  deadline: float | None = None
  is_told_to_stop: bool = False
  code: int | None = None
  lost: str = ''

  @property
  def is_running(self):
    return self.connection is not None and self.connection.is_open

  @property
  def is_over(self):
    return self.job.has_ended and not self.is_running

  @property
  def is_watched(self):
    """Whether something other than a message from its agent can change it."""
    return not self.is_running or self.deadline or self.limit_time < math.inf

  @property
  def title(self):
    name = self.command.name
    return f'trial {name}' if name.isdecimal() else f'the {name}'

  def begin(self, key, job):
    """Notes that it starts, for the first time or again."""
    self.number += 1
    self.key, self.job = key, job
    self.connection = self.deadline = self.code = None
    self.is_told_to_stop, self.lost, self.limit_time = False, '', math.inf

  def join(self, connection, executor):
    """Tells its agent to start it; the agent runs on `executor`, a str."""
    self.connection = connection
    self.lost = f'lost connection to its executor, {executor}'
    self.limit_time = time.monotonic() + self.command.limit.secs
    if self.number > 1:
      task_logs.append(self.command.log, [f'--- restart {self.number - 1} ---'])
    connection.send(go=True)

  def read(self, stop_secs, is_stopping):
    """Handles what its agent says.

    Args:
      stop_secs: float, how long it has to save once its executor is lost.
      is_stopping: whether all trials are being stopped.

    Raises:
      cli.RunError: its executor does not share the folder of the sweep.
    """
    for message in self.connection.receive():
      if isinstance(message.get('lines'), list):
        task_logs.append(self.command.log, message['lines'])
      if isinstance(message.get('lost'), str):
        self.lost = message['lost'][:300]
        self.tell_to_stop(signal.SIGTERM, stop_secs)
      if isinstance(message.get('refused'), str):
        self.connection.send(leave=True)
        if not is_stopping:
          raise cli.RunError(
            f'{message["refused"][:1000]}: --sweep_dir has to be a folder that'
            ' the driver and all executors share'
          )
      if 'end' in message:
        self._take_end(message)

  def _take_end(self, message):
    code = message['end']
    self.code = code if type(code) is int and -65 < code < 256 else None
    if self.is_told_to_stop and code in (cli.NOT_SAVED, -signal.SIGKILL):
      self.code = None  # It was stopped; what it has lost it makes again.
    if not self.is_told_to_stop:
      self.lost = 'stopped by a signal that the driver did not send'
    logdir = command_line.find_value(self.command.argv, 'logdir')
    if self.code == 0 and logdir and isinstance(message.get('report'), dict):
      _save_report(message['report'], logdir)
    self.connection.send(leave=True)

  def tell_to_stop(self, signum, secs):
    """Gives it `secs` to save and leave, unless it was told before."""
    # A second order would mean "at once".
    if self.is_running and not self.is_told_to_stop:
      self.is_told_to_stop = True
      self.deadline = time.monotonic() + secs + KILL_SECS
      self.connection.send(stop=int(signum))

  def keep_deadlines(self, stop_secs):
    """Ends it if it is overdue; once Spark's task ends it has `stop_secs`."""
    now = time.monotonic()
    if self.is_running and now > self.limit_time and not self.is_told_to_stop:
      self.is_late = True
      self.tell_to_stop(signal.SIGTERM, self.command.limit.grace_secs)
    if self.is_running and self.job.has_ended:
      # Its agent notices that too, and says so.
      self.deadline = self.deadline or now + stop_secs
    if self.is_running and self.deadline and now > self.deadline:
      self.connection.is_open = False  # this ends the agent, and the trial

  def find_code(self, is_stopping):
    """Returns its exit code (int) once it is over, None to restart it.

    Args:
      is_stopping: whether all trials are being stopped.

    Raises:
      cli.RunError: no executor can run anything.
    """
    if self.is_late:
      code = cli.LOST if self.code is None else self.code
      return self.command.limit.note(self.command.log, code)
    if self.code is not None:
      return self.code
    if is_stopping:
      return -signal.SIGTERM
    self.lost = self.lost or 'Spark has ended its task'
    if self.connection is None and self.job.error:
      error = self.job.error
      self.lost = barrier_job.find_lost_executor(error) or self.job.explain()
      if 'ModuleNotFoundError' in self.lost:
        raise cli.RunError(f'Spark cannot run a trial: {self.lost}')
    if self.number <= MAX_RESTARTS:
      return None
    why = f'{self.lost}; this was restart {MAX_RESTARTS} of {MAX_RESTARTS}'
    task_logs.append(self.command.log, [f'{SWEEP}: error: {why}'])
    return cli.LOST


def _save_report(report, logdir):
  path = os.path.join(logdir, 'report.json')
  # A shared folder may show new files only some seconds later.
  if not os.path.exists(path):
    with contextlib.suppress(OSError):
      json_files.write(path, report)
