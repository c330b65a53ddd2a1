"""All tasks of a run on Spark, started once: when each starts, stops, leaves.

start   once all tasks are there;
end     after the first failure the workers are stopped, then the ps; then
        all may leave.
"""

import dataclasses
import signal
import time

from distmnist.common import cli
from distmnist.launching import failures
from distmnist.spark import agent_server


@dataclasses.dataclass(frozen=True)
class Failure:
  """The first thing that went wrong in an attempt; exit_code is the task's."""

  name: str
  address: str
  cause: str
  exit_code: int
  num_restarts: int
  log: str

  def __str__(self):
    times = self.num_restarts
    when = (
      f'after {times} restart{"s" if times > 1 else ""}' if times else 'first'
    )
    return (
      f'{self.name} ({self.address}) failed {when}: {self.cause};'
      f' log: {self.log}'
    )


class Attempt:
  """The tasks, and what they are told.

  Attributes:
    number: int, counted from 1.
    peers: dict of name -> agent_server.Peer.
    failure: Failure that ends it, or None.
    is_given_up: whether it is to end, though no task may have failed.
    is_over: whether its tasks were told to leave.
    stop_secs: float, from the first order to stop to the end of all.
  """

  def __init__(self, number, names, logs, stop_secs):
    """
    Args:
      number: int, counted from 1.
      names: list of str, the tasks.
      logs: received_logs.ReceivedLogs.
      stop_secs: float, as above.
    """
    self.number = number
    self.peers = {}
    self.failure = None
    self.is_given_up = False
    self.is_over = False
    self.stop_secs = stop_secs
    self._names = names
    self._logs = logs
    self._is_started = False
    self._deadline = None  # when it has to be over, once that is known

  @property
  def running(self):
    """The Peers (list) whose tasks have not ended."""
    return [peer for peer in self.peers.values() if peer.is_running]

  @property
  def missing(self):
    """The tasks (list of names) that Spark has still to start."""
    if self._is_started or self.is_over:
      return []
    return [name for name in self._names if name not in self.peers]

  @property
  def has_tasks(self):
    """Whether a task still has its connection."""
    return any(peer.connection.is_open for peer in self.peers.values())

  def join(self, peer):
    """Takes in a Peer that has just connected."""
    old = self.peers.setdefault(peer.name, peer)
    if old is not peer:
      self.fail(old, 'Spark has started it once more', cli.LOST)
    if self.is_over or old is not peer:
      _let_go(peer)

  def fail(self, peer, cause, exit_code):
    """Notes what went wrong with a Peer, unless it follows from the first."""
    if self.failure or self.is_over or self.is_given_up:
      return
    self.failure = Failure(
      peer.name,
      peer.address,
      cause,
      exit_code,
      self.number - 1,
      self._logs.path(peer.name),
    )

  def note_end(self, peer, code):
    """Notes what a Peer's agent says of the end of its task.

    Args:
      peer: agent_server.Peer.
      code: anything; an exit code, or -n after signal n, is an int.
    """
    peer.is_ended = True
    peer.code = code if type(code) is int and -65 < code < 256 else None
    if peer.code is None:
      self.fail(peer, 'told to stop, but not by us', cli.LOST)
    elif peer.code < 0:
      self.fail(peer, failures.describe_end(peer.code), 128 - peer.code)
    elif peer.code:
      self.fail(peer, failures.describe_end(peer.code), peer.code)

  def note_silence(self, peer):
    """Notes that the connection of a Peer has ended."""
    if peer.is_ended:
      return
    peer.is_ended = True
    cause = f'no word from it any more; its executor was {peer.executor}'
    self.fail(peer, cause, cli.LOST)

  def advance(self):
    """Brings it forward, as far as what was heard allows."""
    if self.is_over:
      return
    if self.failure or self.is_given_up:
      self._stop_in_order()
      if not self.running or not self._is_started:
        self._let_all_go()
    elif not self._is_started:
      if len(self.peers) == len(self._names):
        self._start()
    elif all(peer.code == 0 for peer in self.peers.values()):
      self._let_all_go()
    elif all(peer.name.startswith('ps') for peer in self.running):
      # The workers are done: they have told the ps to leave.
      self._await_ps()

  def stop_at_once(self):
    """Has the agents end their tasks without grace."""
    for peer in self.running:
      # The second order is the one without.
      for _ in range(1 if peer.is_told_to_stop else 2):
        peer.connection.send(stop=signal.SIGTERM)

  @property
  def _is_late(self):
    return self._deadline is not None and time.monotonic() > self._deadline

  def _start(self):
    self._is_started = True
    for name, peer in self.peers.items():
      self._logs.begin(name, self.number - 1)
      peer.connection.send(go=True)

  def _await_ps(self):
    secs = agent_server.LEAVE_SECS
    self._deadline = self._deadline or time.monotonic() + secs
    if self._is_late:
      cause = f'still ran {secs:g} s after the last worker had ended'
      self.fail(self.running[0], cause, cli.FAILED)
      self._deadline = None

  def _stop_in_order(self):
    running = self.running
    if not (self._is_started and running):
      return
    self._deadline = self._deadline or time.monotonic() + self.stop_secs
    workers = [peer for peer in running if peer.name.startswith('worker')]
    for peer in workers or running:
      if not peer.is_told_to_stop:
        peer.is_told_to_stop = True
        peer.connection.send(stop=signal.SIGTERM)
    if self._is_late:
      for peer in running:  # With its connection ends the agent, and the task.
        peer.connection.is_open = False

  def _let_all_go(self):
    self.is_over = True
    for peer in self.peers.values():
      _let_go(peer)


def _let_go(peer):
  peer.is_ended = True
  peer.connection.send(leave=True)
