"""Runs the trials of a sweep on Spark, one task each.

A trial is a Spark job with one task. On the executor an agent (spark/agent.py)
runs the trial and reports here: its log as it grows, then its exit code and its
report. Driver and executors share its folder; each agent holds the lock of the
sweep's trials there, so that if a sweep is killed, the next one waits until
the old trials are gone. A trial that is lost with its executor starts again.
"""

import contextlib
import dataclasses
import itertools
import logging
import math
import os
import signal
import time

from distmnist.common import (
  cli,
  command_line,
  console,
  files,
  signals,
  stop_grace,
)
from distmnist.common.names import SWEEP
from distmnist.launching.screen import task_logs
from distmnist.spark import barrier_job
from distmnist.sweeps import runners

_log = logging.getLogger(__name__)

_TICK_SECS = 0.5
# From the order to stop to the end of the agent, beyond its trial's grace.
_STOP_MARGIN_SECS = 6.5
MAX_RESTARTS = 3
# From the second order, which kills the trial, to the end of Spark's task.
KILL_SECS = 5.0


class SparkRunner(runners.Runner):
  """Runs commands on the executors of Spark, which it starts and ends."""

  _kill_secs = KILL_SECS

  def __init__(self, driver, stop_grace_secs=stop_grace.DEFAULT_SECS):
    """
    Args:
      driver: spark_driver.SparkDriver.
      stop_grace_secs: float, train's.
    """
    super().__init__()
    self._driver = driver
    self._stop_secs = stop_grace.for_worker(stop_grace_secs) + _STOP_MARGIN_SECS
    self._wait = None
    self._by_key = {}
    self._numbers = itertools.count(1)
    self._is_stopping = False

  def __enter__(self):
    """Starts Spark.

    Raises:
      cli.RunError: it does not start, or has no executor.
      signals.SignalError: a signal came meanwhile.
    """
    with contextlib.ExitStack() as stack:
      stack.enter_context(self._driver.opened(self._welcome))
      self._server = self._driver.server
      stack.enter_context(
        signals.collecting(self.signals, self._server.waker.fileno())
      )
      stack.callback(self._end)
      self._stack = stack.pop_all()
    return self

  def __exit__(self, *error):
    return self._stack.__exit__(*error)

  def _end(self):
    if self._running:
      self.stop(signal.SIGTERM, self._stop_secs)

  def _begin(self, command):
    trial = SparkTrial(command)
    self._submit(trial)
    return trial

  def _submit(self, trial):
    # Never the same twice: a late agent is not mistaken for another.
    key = f'{trial.command.name}.{next(self._numbers)}'
    job = self._driver.make_job(key, trial.command, trial.number + 1)
    self._by_key.pop(trial.key, None)
    self._by_key[key] = trial
    trial.begin(key, job)
    job.start()

  def _welcome(self, connection, hello):
    """Admits the agent of a trial; one that comes too late is turned away."""
    key = hello.get('hello')
    trial = self._by_key.get(key) if isinstance(key, str) else None
    if trial is None or trial.connection is not None or self._is_stopping:
      return None
    trial.join(connection, hello['executor'])
    return trial

  def _turn(self, secs=math.inf):
    trials = list(self._running.values())
    if self._is_stopping:
      for trial in trials:
        # Once may be too early: the job's thread may not have submitted it.
        if trial.connection is None and not trial.job.has_ended:
          trial.job.cancel()
    is_watched = self._is_stopping or any(t.is_watched for t in trials)
    for trial, message in self._server.poll(
      min(secs, _TICK_SECS) if is_watched else None
    ):
      if message is None:
        trial.connection.close()
      else:
        trial.read(message, self._stop_secs, self._is_stopping)
    ended = []
    for trial in trials:
      trial.keep_deadlines(self._stop_secs)
      if trial.is_over and (code := self._conclude(trial)) is not None:
        name = trial.command.name
        del self._running[name], self._by_key[trial.key]
        ended.append((name, code))
    if not (ended or self._is_stopping):
      self._check_that_one_runs()
    return ended

  def _conclude(self, trial):
    """Returns the exit code (int) of a trial that is over.

    None if the trial was lost and has been restarted.

    Raises:
      cli.RunError: Spark has stopped, or no executor can run anything.
    """
    code = trial.find_code(self._is_stopping)
    if code is None:
      _log.info(
        f'{trial.title}: {trial.lost}: restart {trial.number} of'
        f' {MAX_RESTARTS}, from its last checkpoint'
      )
      self._submit(trial)
    return code

  def _check_that_one_runs(self):
    """Gives up if Spark starts no trial; while others run, that may take long.

    Raises:
      cli.LostError: Spark has started none within wait_secs.
    """
    trials = self._running.values()
    if not trials or any(t.connection or t.job.has_ended for t in trials):
      self._wait = None
      return
    secs = self._driver.wait_secs
    self._wait = self._wait or console.Wait(secs)
    what = f'for Spark to start {", ".join(t.title for t in trials)}'
    if self._wait.is_over(what):
      raise cli.LostError(
        f'waited {secs:g} s {what}: are the executors still there,'
        ' and their slots free?'
      )

  def _tell(self, signum, grace_secs):
    self._is_stopping = True
    for trial in self._running.values():
      trial.tell_to_stop(signum, grace_secs)

  def _kill(self, signum):
    for trial in self._running.values():
      if trial.is_running:
        trial.connection.send(stop=int(signum))  # a second time: at once

  def _give_up(self):
    # They end with their connections, and with Spark.
    self._by_key.clear()
    return super()._give_up()


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

  def read(self, message, stop_secs, is_stopping):
    """Handles what its agent says.

    Args:
      message: dict.
      stop_secs: float, how long it has to save once its executor is lost.
      is_stopping: whether all trials are being stopped.

    Raises:
      cli.RunError: its executor does not share the folder of the sweep.
    """
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
      self.connection.close()  # this ends the agent, and the trial

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
      files.write_json(path, report)
