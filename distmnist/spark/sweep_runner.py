"""Runs the trials of a sweep on Spark, one task each.

A trial is a Spark job with one task. On the executor an agent (spark/agent.py)
runs the trial and reports here: its log as it grows, then its exit code and its
report. Driver and executors share its folder; each agent holds the lock of the
sweep's trials there, so that if a sweep is killed, the next one waits until
the old trials are gone. spark_trial.py handles the loss of an executor.
"""

import contextlib
import itertools
import logging
import math
import signal

from distmnist.common import cli, console, signals, stop_grace
from distmnist.spark import sweep_trial
from distmnist.sweeps import runners

_log = logging.getLogger(__name__)

_TICK_SECS = 0.5
# From the order to stop to the end of the agent, beyond its trial's grace.
_STOP_MARGIN_SECS = 6.5


class SparkRunner(runners.Runner):
  """Runs commands on the executors of Spark, which it starts and ends."""

  _kill_secs = sweep_trial.KILL_SECS

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
    trial = sweep_trial.SparkTrial(command)
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
    for trial in self._server.poll(
      min(secs, _TICK_SECS) if is_watched else None
    ):
      trial.read(self._stop_secs, self._is_stopping)
    ended = []
    for trial in trials:
      trial.keep_deadlines(self._stop_secs)
      if trial.is_over and (code := self._conclude(trial)) is not None:
        name = trial.command.name
        del self._running[name], self._by_key[trial.key]
        ended.append((name, code))
    self._server.drop_closed()
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
        f' {sweep_trial.MAX_RESTARTS}, from its last checkpoint'
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
