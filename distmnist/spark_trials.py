"""Runs the trials of a sweep on Spark, a task each; see trials.py for runners.

A trial is a job of Spark with one task. On the executor an agent runs it
(spark_task.py) and reports here: its log comes as it grows, then its exit code
and its report. Its folder is one that driver and executors share; each agent
holds the lock of the sweep's trials there, so that the next sweep waits until
the trials of one that was killed are gone.

An executor that is lost concerns its own trial alone. The agent outlives it and
has the trial save; then the trial starts again elsewhere, from its checkpoint,
up to MAX_RESTARTS times. Spark itself is told to try nothing again: of two that
train in one folder none would be right. So a trial starts anew only once its
agent has gone and Spark has given up its task.
"""

import contextlib
import dataclasses
import fcntl
import functools
import itertools
import math
import os
import secrets
import signal
import time

from distmnist import (
  cli,
  console,
  files,
  fork_client,
  on_spark,
  processes,
  spark_desk,
  spark_task,
  stop_grace,
  task_logs,
)
from distmnist import tasks as tasks_lib
from distmnist import trials as trials_lib
from distmnist.launchers import spark

MAX_RESTARTS = 3
# For make_conf: who sets it otherwise has Spark's own attempts sent away.
CONF = (
  'spark.app.name=distmnist.sweep',
  'spark.task.maxFailures=1',
  'spark.speculation=false',
)

_TICK_SECS = 0.5
# From the order to stop to the end of the agent: beyond what its trial has.
_STOP_MARGIN_SECS = 6.5
# From the second order, which kills the trial, to the end of Spark's task.
_KILL_SECS = 5.0


@dataclasses.dataclass
class _Run:
  """A trial that was started.

  Attributes:
    name: str, the sweep's; argv: list of str; log: str, a path; env: dict.
    number: int, how often it was started, from 1.
    key: str, what this start is called.
    job: on_spark.Job of this start.
    limit: trials.Limit, how long it may take.
    connection: that of its agent, or None before it has come.
    limit_time: when it is told to leave, as it has taken too long.
    is_too_long: whether that was so.
    deadline: when the agent has to be gone, once that is known.
    is_told_to_stop: whether we have told its agent so.
    code: int, what it has ended with, or None.
    lost: str, why it has to start again, should it have no code.
  """

  name: str
  argv: list
  log: str
  env: dict
  number: int = 0
  key: str = ''
  limit: trials_lib.Limit = trials_lib.NO_LIMIT
  job: on_spark.Job | None = None
  connection: object = None
  limit_time: float = math.inf
  is_too_long: bool = False
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


class SparkRunner:
  """Runs commands on the executors of Spark.

  A context: its end is the end of all of them and of Spark, and so is ours by
  kill -9. While it is open SIGINT, SIGTERM and SIGHUP do not end this process:
  they are collected in `signals`, and they interrupt `wait`.

  Attributes:
    signals: list of int, what this process received.
  """

  def __init__(
    self,
    conf,
    logs_dir,
    lock,
    wait_secs,
    say,
    stop_grace_secs=stop_grace.DEFAULT_SECS,
  ):
    """
    Args:
      conf: dict, the settings of Spark.
      logs_dir: str, the folder for Spark's own log.
      lock: file, open for reading and writing and locked: as long as a trial
        runs, nobody else can lock it by himself.
      wait_secs: float, how long to wait for the first executor, and for Spark
        to start a trial when none runs.
      say: callable, takes a line of ours.
      stop_grace_secs: float, train's.
    """
    self._stop_secs = stop_grace.for_worker(stop_grace_secs) + _STOP_MARGIN_SECS
    self._conf = conf
    self._logs_dir = logs_dir
    self._lock = lock
    self._wait_secs = wait_secs
    self._say = say
    self._wait = None
    self._runs = {}
    self._by_key = {}
    self._numbers = itertools.count(1)
    self._is_stopping = False
    self.signals = []

  def __enter__(self):
    """Starts Spark.

    Raises:
      cli.RunError: it does not start, or has no executor.
      launchers.spark.SignalError: a signal came meanwhile.
    """
    self._secret = secrets.token_hex(32)
    self._word = secrets.token_hex(16)
    _share(self._lock, self._word)
    with contextlib.ExitStack() as stack:
      with spark.heeding_signals():
        self._sc = stack.enter_context(spark.opened(self._conf, self._logs_dir))
        self._say(on_spark.describe_python(self._sc))
        on_spark.warn_of_network(self._sc.getConf(), self._say)
        on_spark.ship_package(self._sc)
        self._wait_for_slot()
        conf = self._sc.getConf()
        self._host = conf.get('spark.driver.host')
        bind_host = conf.get('spark.driver.bindAddress') or self._host
        self._door = spark_desk.Door(bind_host, self._secret, self._welcome)
        stack.callback(self._door.close)
      stack.enter_context(
        fork_client.collecting(self.signals, self._door.waker.fileno())
      )
      stack.callback(self._end)
      self._stack = stack.pop_all()
    return self

  def __exit__(self, *error):
    return self._stack.__exit__(*error)

  def start(self, name, argv, log, env=(), limit=trials_lib.NO_LIMIT):
    """Begins a command; returns the size of its log before, in bytes.

    Args:
      name: str, what it is called here.
      argv: list of str, ('python', '-m', module, flags...).
      log: str, a path; what it prints is appended there.
      env: dict, its environment beyond the executor's.
      limit: trials.Limit, how long it may take on an executor.

    Raises:
      OSError: the log cannot be written.
      cli.RunError: Spark has stopped.
    """
    with open(log, 'ab', opener=files.no_follow) as file:
      size = file.seek(0, os.SEEK_END)
    run = _Run(name, list(argv), log, dict(env), limit=limit)
    self._submit(run)
    self._runs[name] = run
    return size

  def wait(self):
    """Waits until a command ends or a signal comes.

    Raises:
      cli.RunError: Spark has stopped, starts no trial, or an executor does not
        share the folder of the sweep.
    """
    while self._runs and not self.signals:
      if ended := self._turn():
        return ended
    return []

  def stop(self, signum, grace_secs):
    """Ends all commands; who has not left after its grace is killed.

    All are killed at once if another signal comes.

    Returns:
      [(name, code), ...].
    """
    self._is_stopping = True
    ended, num_signals = [], len(self.signals)
    for run in self._runs.values():
      self._tell_to_stop(run, signum, grace_secs)
    deadline = time.monotonic() + grace_secs
    while self._runs and time.monotonic() < deadline:
      if len(self.signals) > num_signals:
        break
      ended += self._cancel_and_turn()
    for run in self._runs.values():
      if run.is_running:
        run.connection.send(stop=int(signum))  # a second time: at once
    deadline = time.monotonic() + _KILL_SECS
    while self._runs and time.monotonic() < deadline:
      ended += self._cancel_and_turn()
    # The end of their connections, and of Spark, is theirs too.
    ended += [(name, -signal.SIGKILL) for name in self._runs]
    self._runs, self._by_key = {}, {}
    return ended

  def _end(self):
    if self._runs:
      self.stop(signal.SIGTERM, self._stop_secs)

  def _wait_for_slot(self):
    if self._sc.getConf().get('spark.dynamicAllocation.enabled') == 'true':
      return  # Executors come once there is work.
    wait = console.Wait(self._wait_secs, self._say)
    while not on_spark.count_slots(self._sc):
      if wait.is_over('for an executor of Spark'):
        raise cli.RunError(
          f'after {self._wait_secs:g} s Spark has no executor with a slot for a'
          ' trial: are its workers there, and have they spark.task.cpus cores'
          ' and spark.executor.memory to give?'
        )
      time.sleep(processes.TICK_SECS)

  def _cancel_and_turn(self):
    """As `_turn`; what Spark has not begun yet will not begin."""
    for run in self._runs.values():
      # Once may be too early: its thread may not have come to it yet.
      if run.connection is None and not run.job.has_ended:
        run.job.cancel()
    return self._turn()

  def _submit(self, run):
    on_spark.count_slots(self._sc)  # or says that Spark has stopped
    self._by_key.pop(run.key, None)
    run.number += 1
    # Never the same twice: who comes late is not taken for another.
    run.key = f'{run.name}.{next(self._numbers)}'
    run.connection = run.deadline = run.code = None
    run.is_told_to_stop, run.lost, run.limit_time = False, '', math.inf
    self._by_key[run.key] = run
    spec = {
      'name': run.key,
      'argv': run.argv,
      'env': run.env,
      'attempt': run.number,
      'lock': [os.path.abspath(self._lock.name), self._word],
      'driver': [self._host, self._door.port],
      'secret': self._secret,
    }
    task = functools.partial(spark_task.run_trial, spec)
    rdd = self._sc.parallelize([0], 1).mapPartitions(task)
    run.job = on_spark.Job(self._sc, rdd, self._door.wake)
    run.job.start()

  def _welcome(self, connection, hello):
    """Lets the agent of a trial in; one that comes too late is sent away."""
    key, executor = hello.get('hello'), hello.get('executor')
    run = self._by_key.get(key) if isinstance(key, str) else None
    if (
      run is None
      or run.connection is not None
      or self._is_stopping
      or not spark_desk.is_executor(executor)
    ):
      return None
    run.connection, run.lost = connection, _no_word_from(executor)
    run.limit_time = time.monotonic() + run.limit.secs
    if run.number > 1:
      task_logs.append(run.log, [f'--- restart {run.number - 1} ---'])
    connection.send(go=True)
    return run

  def _turn(self):
    """Hears the agents; returns [(name, code), ...] of what has ended."""
    is_waited_for = self._is_stopping or any(
      not run.is_running or run.deadline or run.limit_time < math.inf
      for run in self._runs.values()
    )
    for run in self._door.hear(_TICK_SECS if is_waited_for else None):
      self._hear(run)
    now, ended = time.monotonic(), []
    for run in list(self._runs.values()):
      if run.is_running and now > run.limit_time and not run.is_told_to_stop:
        run.is_too_long = True
        self._tell_to_stop(run, signal.SIGTERM, run.limit.grace_secs)
      if run.is_running and run.job.has_ended:
        # Its agent hears of it too, and says so.
        run.deadline = run.deadline or now + self._stop_secs
      if run.is_running and run.deadline and now > run.deadline:
        run.connection.is_open = False  # by this the agent ends, and the trial
      if run.is_over and (code := self._conclude(run)) is not None:
        del self._runs[run.name], self._by_key[run.key]
        ended.append((run.name, code))
    self._door.drop_closed()
    if not (ended or self._is_stopping):
      self._check_that_one_runs()
    return ended

  def _hear(self, run):
    for message in run.connection.receive():
      if isinstance(message.get('lines'), list):
        task_logs.append(run.log, message['lines'])
      if isinstance(message.get('lost'), str):
        run.lost = message['lost'][:300]
        self._tell_to_stop(run, signal.SIGTERM, self._stop_secs)
      if isinstance(message.get('refused'), str):
        run.connection.send(leave=True)
        if not self._is_stopping:
          raise cli.RunError(
            f'{message["refused"][:1000]}: --sweep_dir has to be a folder that'
            ' the driver and all executors share'
          )
      if 'end' in message:
        self._take_end(run, message)

  def _take_end(self, run, message):
    code = message['end']
    run.code = code if type(code) is int and -65 < code < 256 else None
    if not run.is_told_to_stop:
      run.lost = 'told to stop, but not by us'
    report = message.get('report')
    logdir = tasks_lib.flag_value(run.argv, 'logdir')
    if run.code == 0 and logdir and isinstance(report, dict):
      path = os.path.join(logdir, 'report.json')
      # A shared folder may show what is new in it some seconds later.
      if not os.path.exists(path):
        with contextlib.suppress(OSError):
          trials_lib.write_json(path, report)
    run.connection.send(leave=True)

  def _tell_to_stop(self, run, signum, secs):
    # A second time would be: at once.
    if run.is_running and not run.is_told_to_stop:
      run.is_told_to_stop = True
      run.deadline = time.monotonic() + secs + _KILL_SECS
      run.connection.send(stop=int(signum))

  def _conclude(self, run):
    """Returns the exit code (int) of a run that is over.

    None if it was lost and has started again.

    Raises:
      cli.RunError: Spark has stopped, or no executor can run anything.
    """
    if run.is_too_long:
      code = cli.LOST if run.code is None else run.code
      return run.limit.note(run.log, code)
    if run.code is not None:
      return run.code
    if self._is_stopping:
      return -signal.SIGTERM
    why = run.lost or 'Spark has ended its task'
    if run.connection is None and run.job.error:
      why = on_spark.find_lost_executor(run.job.error) or run.job.explain()
      if 'ModuleNotFoundError' in why:
        raise cli.RunError(f'Spark cannot run a trial: {why}')
    if run.number > MAX_RESTARTS:
      why = f'{why}; this was restart {MAX_RESTARTS} of {MAX_RESTARTS}'
      task_logs.append(run.log, [f'distmnist.sweep: error: {why}'])
      return cli.LOST
    self._say(
      f'{_describe(run)}: {why}: restart {run.number} of {MAX_RESTARTS}, from'
      ' its last checkpoint'
    )
    self._submit(run)
    return None

  def _check_that_one_runs(self):
    """Gives up if Spark starts none; with others on their way it may take long.

    Raises:
      cli.LostError: it has not within wait_secs.
    """
    runs = self._runs.values()
    if not runs or any(run.connection or run.job.has_ended for run in runs):
      self._wait = None
      return
    self._wait = self._wait or console.Wait(self._wait_secs, self._say)
    what = f'for Spark to start {", ".join(map(_describe, runs))}'
    if self._wait.is_over(what):
      raise cli.LostError(
        f'waited {self._wait_secs:g} s {what}: are the executors still there,'
        ' and their slots free?'
      )


def _describe(run):
  return f'trial {run.name}' if run.name.isdecimal() else f'the {run.name}'


def _share(lock, word):
  """Makes the file `lock`, that we alone have, one to have with others.

  They know it by the `word` in it.
  """
  lock.truncate(0)
  lock.write(word)
  lock.flush()
  os.fsync(lock.fileno())
  fcntl.flock(lock, fcntl.LOCK_SH)


def _no_word_from(executor):
  return f'no word from it any more; its executor was {executor}'
