"""The driver of a sweep on Spark: starts Spark, and makes each trial a job."""

import contextlib
import dataclasses
import fcntl
import functools
import logging
import os
import secrets
import time
from typing import IO

from distmnist.common import cli, console, signals
from distmnist.launching.supervisor import task_group
from distmnist.spark import (
  agent_server,
  barrier_job,
  context,
  executors,
  partition,
)

_log = logging.getLogger(__name__)


@dataclasses.dataclass
class SparkDriver:
  """Starts Spark, and makes its jobs.

  Attributes:
    conf: dict, the settings of Spark.
    logs_dir: str, the folder for Spark's own log.
    lock: file, open for reading and writing and locked: as long as a trial
      runs, no other process can lock it exclusively.
    wait_secs: float, how long to wait for the first executor, and for Spark to
      start a trial when none runs.
    server: agent_server.AgentServer, where agents report while Spark runs.
  """

  conf: dict
  logs_dir: str
  lock: IO
  wait_secs: float
  server: agent_server.AgentServer | None = None

  @contextlib.contextmanager
  def opened(self, welcome):
    """Runs Spark until the end of the context.

    Args:
      welcome: callable(connection, hello), see agent_server.AgentServer.

    Raises:
      cli.RunError: it does not start, or has no executor.
      signals.SignalError: a signal came meanwhile.
    """
    self._word = secrets.token_hex(16)
    _share(self.lock, self._word)
    with contextlib.ExitStack() as stack:
      with signals.raising():
        self._sc = stack.enter_context(context.opened(self.conf, self.logs_dir))
        conf = self._sc.getConf()
        _log.info(executors.describe_python(self._sc))
        executors.warn_of_network(conf)
        executors.ship_package(self._sc)
        _wait_for_slot(self._sc, self.wait_secs)
        self.server = agent_server.AgentServer(conf, welcome)
        stack.callback(self.server.close)
      yield

  def make_job(self, key, command, attempt):
    """Returns an unstarted barrier_job.Job, whose agent runs a command.

    Args:
      key: str, by which the agent identifies itself.
      command: runners.Command.
      attempt: int, how often the command has been started, this time included.

    Raises:
      cli.RunError: Spark has stopped.
    """
    executors.count_slots(self._sc)  # raises if Spark has stopped
    spec = {
      'name': key,
      'argv': list(command.argv),
      'env': dict(command.env),
      'attempt': attempt,
      'lock': [os.path.abspath(self.lock.name), self._word],
      **self.server.contact,
    }
    task = functools.partial(partition.run_trial, spec)
    rdd = self._sc.parallelize([0], 1).mapPartitions(task)
    return barrier_job.Job(self._sc, rdd, self.server.wake)


def _wait_for_slot(sc, wait_secs):
  """Returns once an executor can take a trial.

  Raises:
    cli.RunError: none can within wait_secs.
  """
  if sc.getConf().get('spark.dynamicAllocation.enabled') == 'true':
    return  # Executors come once there is work.
  wait = console.Wait(wait_secs)
  while not executors.count_slots(sc):
    if wait.is_over('for an executor of Spark'):
      raise cli.RunError(
        f'after {wait_secs:g} s Spark has no executor with a slot for a'
        ' trial: are its workers there, and have they spark.task.cpus cores'
        ' and spark.executor.memory to give?'
      )
    time.sleep(task_group.TICK_SECS)


def _share(lock, word):
  """Turns our exclusive lock on the file `lock` into a shared one.

  The agents, which share it, recognize the file by the `word` in it.
  """
  lock.truncate(0)
  lock.write(word)
  lock.flush()
  os.fsync(lock.fileno())
  fcntl.flock(lock, fcntl.LOCK_SH)
