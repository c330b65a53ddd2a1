"""Spark's executors as a host of the trials of a sweep, one task each.

A trial is a Spark job with one task. Driver and executors share the folder of
the sweep; each agent holds the lock of the sweep's trials there, so that if a
sweep is killed, the next one waits until the old trials are gone. A trial has
ended once Spark is done with its job: until then its agent may still save.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import functools
import itertools
import os
import secrets
import signal
import time
from collections.abc import Iterable
from typing import IO, TYPE_CHECKING, Any

from distmnist.common import cli, command_line, console, files, signals
from distmnist.launching import host as host_lib
from distmnist.spark import agent_host, executors, links, partition, spark_job
from distmnist.sweeps import runners

if TYPE_CHECKING:
  import pyspark

# How often to look at Spark's jobs, which also tell us when they end.
_TICK_SECS = 0.5


@dataclasses.dataclass
class _Start:
  """A start of a trial.

  Attributes:
    key: what its agent identifies itself by.
    job: the one in which Spark starts the agent.
    logdir: train's, or None.
    code: its exit code once that is known, or None.
    is_cancelled: whether Spark is to end its job: it was told to stop before
      its agent came, or its agent does not answer.
    deadline: when its agent must have said why Spark has ended the job.
  """

  key: str
  job: spark_job.Job
  logdir: str | None
  code: int | None = None
  is_cancelled: bool = False
  deadline: float | None = None


class TrialHost(agent_host.AgentHost):
  """Runs trials on the executors of a Spark that is there."""

  def __init__(
    self,
    sc: pyspark.SparkContext,
    lock: IO[str],
    wait_secs: float,
    stop_secs: float,
  ) -> None:
    """
    Args:
      lock: open for reading and writing and locked: as long as a trial runs, no
        other process can lock it exclusively.
      wait_secs: how long to wait for Spark to start a trial when none runs.
      stop_secs: how long trials that still run at the end have to save.
    """
    super().__init__(sc.getConf())
    self._sc = sc
    self._lock = os.path.abspath(lock.name), _share(lock)
    self._wait_secs, self._stop_secs = wait_secs, stop_secs
    self._wait: console.Wait | None = None
    self._starts: dict[str, _Start] = {}  # Of each trial in `_left`.
    self._numbers = itertools.count(1)

  def __enter__(self) -> TrialHost:
    with contextlib.ExitStack() as stack:
      stack.callback(self._server.close)
      waker = self._server.waker.fileno()
      stack.enter_context(signals.collecting(self.signals, waker))
      self._at_exit = stack.pop_all()
    self.is_ready = True
    return self

  def __exit__(self, *error: object) -> None:
    try:
      self._stop()
    finally:
      self._at_exit.close()

  def start(self, request: host_lib.Request) -> None:
    executors.count_slots(self._sc)  # raises if Spark has stopped
    # Never the same twice: a late agent is not mistaken for another.
    name = request.name
    key = f'{name}.{next(self._numbers)}'
    spec = {
      'name': key,
      'argv': list(request.argv),
      'env': dict(request.env),
      'lock': list(self._lock),
      **self._server.contact,
    }
    task = functools.partial(partition.run_trial, spec)
    rdd = self._sc.parallelize([0], 1).mapPartitions(task)
    job = spark_job.Job(self._sc, rdd, self._server.wake)
    logdir = command_line.find_value(request.argv, 'logdir')
    self._starts[name] = _Start(key, job, logdir)
    self._logs[name] = request.log
    self._left.add(name)
    self._peers.pop(name, None)
    self.reasons.pop(name, None)
    job.start()

  def signal(self, names: Iterable[str], signum: int) -> None:
    for name in self._left.intersection(names):
      if name in self._peers:
        self._peers[name].order_stop(signum)
      else:
        self._starts[name].is_cancelled = True
        self._starts[name].job.cancel()

  def poll(
    self, timeout_secs: float | None = None
  ) -> list[tuple[str, int | None]]:
    if not all(map(self._is_at_work, self._left)):
      secs = _TICK_SECS if timeout_secs is None else timeout_secs
      timeout_secs = min(secs, _TICK_SECS)
    return super().poll(timeout_secs)

  def kill(self) -> None:
    self.signal(list(self._left), signal.SIGKILL)

  def _is_told(self, name: str) -> bool:
    peer = self._peers.get(name)
    return peer.num_stops > 0 if peer else self._starts[name].is_cancelled

  def _is_at_work(self, name: str) -> bool:
    """Whether only a message of its agent can change a trial."""
    peer, job = self._peers.get(name), self._starts[name].job
    has_agent = peer is not None and peer.link.is_open
    return has_agent and not self._is_told(name) and not job.has_ended

  def _stop(self) -> None:
    """Ends what still runs; gives it time to save, unless a signal comes."""
    deadline = time.monotonic() + self._stop_secs
    num_signals = len(self.signals)
    untold = {name for name in self._left if not self._is_told(name)}
    self.signal(untold, signal.SIGTERM)
    with contextlib.suppress(cli.RunError):  # Spark has stopped.
      while untold & self._left and len(self.signals) == num_signals:
        secs = deadline - time.monotonic()
        if secs <= 0:
          break
        self.poll(secs)

  def _welcome(
    self, link: links.Link, hello: links.Message
  ) -> agent_host.Peer | None:
    """Lets in the agent of a trial; one that comes too late is turned away."""
    key = hello.get('hello')
    for name, start in self._starts.items():
      if start.key == key and name not in self._peers:
        if start.is_cancelled:
          return None
        peer = agent_host.Peer(name, hello['executor'], link)
        self._peers[name] = peer
        self.begun.append((name, None))  # Its pid is another machine's.
        link.send(go=True)
        return peer
    return None

  def _read(self, peer: agent_host.Peer, message: links.Message) -> None:
    super()._read(peer, message)
    if isinstance(message.get('refused'), str):
      self._end(peer.name, -signal.SIGTERM)
      if not peer.num_stops:
        raise cli.RunError(
          f'{message["refused"][:1000]}: --sweep_dir has to be a folder that'
          ' the driver and all executors share'
        )

  def _end(
    self,
    name: str,
    code: int,
    reason: str = '',
    report: dict[str, Any] | None = None,
  ) -> None:
    start = self._starts.get(name)
    if start is None or start.code is not None:
      return
    start.code = code
    if reason:
      self._lose(name, reason)
    if report and start.logdir:
      _save_report(report, start.logdir)
    self._peers[name].link.send(leave=True)

  def _drop(self, peer: agent_host.Peer) -> None:
    start = self._starts.get(peer.name)
    if peer.is_overdue and start:  # It hangs: only Spark can end it.
      start.is_cancelled = True
      if start.code is None:
        start.code = -signal.SIGKILL
    super()._drop(peer)

  def _check_jobs(self) -> None:
    for name in sorted(self._left):
      start, peer = self._starts[name], self._peers.get(name)
      if start.is_cancelled and not start.job.has_ended:
        # Once may be too early: the job's thread may not have submitted it.
        start.job.cancel()
      elif start.job.has_ended and not (peer and peer.link.is_open):
        self._conclude(name, start)
      elif start.job.has_ended and start.code is None:
        # Its agent notices that too, and says why.
        now = time.monotonic()
        start.deadline = start.deadline or now + spark_job.END_SECS
        if now > start.deadline and name not in self.reasons:
          self._lose(name, 'Spark has ended its task')
    self._check_that_one_runs()

  def _conclude(self, name: str, start: _Start) -> None:
    """Tells the end of a trial.

    Raises:
      cli.RunError: no executor can run anything.
    """
    code = start.code
    if code is None and start.is_cancelled:
      code = -signal.SIGTERM
    elif code is None:
      code = cli.LOST
      reason = 'Spark has ended its task'
      if start.job.error:
        lost = spark_job.find_lost_executor(start.job.error)
        reason = lost or start.job.explain()
      if 'ModuleNotFoundError' in reason:
        raise cli.RunError(f'Spark cannot run a trial: {reason}')
      self._lose(name, reason)
    self._events.append((name, code))
    self._left.remove(name)
    del self._starts[name]

  def _check_that_one_runs(self) -> None:
    """Gives up if Spark starts no trial; while others run, that may take long.

    Raises:
      cli.LostError: Spark has started none within wait_secs.
    """
    are_waiting = all(
      name not in self._peers and not start.is_cancelled
      for name, start in self._starts.items()
    )
    if not self._left or not are_waiting:
      self._wait = None
      return
    self._wait = self._wait or console.Wait(self._wait_secs)
    names = ', '.join(map(runners.describe, sorted(self._left)))
    if self._wait.is_over(f'for Spark to start {names}'):
      raise cli.LostError(
        f'waited {self._wait_secs:g} s for Spark to start {names}: are the'
        ' executors still there, and their slots free?'
      )


def _share(lock: IO[str]) -> str:
  """Turns our exclusive lock on the file `lock` into a shared one.

  Returns:
    A word in it by which the agents, which share it, recognize the file.
  """
  word = secrets.token_hex(16)
  lock.truncate(0)
  lock.write(word)
  lock.flush()
  os.fsync(lock.fileno())
  fcntl.flock(lock, fcntl.LOCK_SH)
  return word


def _save_report(report: dict[str, Any], logdir: str) -> None:
  path = os.path.join(logdir, 'report.json')
  # A shared folder may show new files only some seconds later.
  if not os.path.exists(path):
    with contextlib.suppress(OSError):
      files.write_json(path, report)
