"""Agents on Spark's executors as a host of tasks.

On each executor an agent (spark/agent.py) connects here, and is told to start
its task; it reports log lines and the end, and is told to stop.
"""

from __future__ import annotations

import abc
import collections
import dataclasses
import signal
import time
from typing import TYPE_CHECKING, Any

from distmnist.common import cli
from distmnist.launching import host as host_lib
from distmnist.launching.screen import task_logs
from distmnist.spark import agent_server, links

if TYPE_CHECKING:
  import pyspark

# From the order to kill a task until its agent must have reported its end.
KILL_SECS = 5.5


@dataclasses.dataclass
class Peer:
  """A task's agent: the link to it, and what it was told."""

  name: str
  executor: str
  link: links.Link
  num_stops: int = 0
  deadline: float | None = None

  def order_stop(self, signum: int) -> None:
    """Sends an order to stop, then one to stop at once, but neither twice."""
    num_stops = 2 if signum == signal.SIGKILL else 1
    while self.num_stops < num_stops:
      # The second order is the one without grace.
      self.link.send(stop=int(signal.SIGTERM))
      self.num_stops += 1
      if self.num_stops == 2:
        self.deadline = time.monotonic() + KILL_SECS

  @property
  def is_overdue(self) -> bool:
    """Whether it was told to stop at once, and its time for that is over."""
    return (
      self.link.is_open
      and self.deadline is not None
      and time.monotonic() > self.deadline
    )


class AgentHost(host_lib.Host):
  """The common part of training and sweeps: agents that are told and report.

  A subclass submits the jobs of Spark that start the agents, and says which
  agents it expects (`_welcome`) and how tasks end.
  """

  name = 'Spark'

  def __init__(self, conf: pyspark.SparkConf) -> None:
    """Listens.

    Raises:
      cli.RunError: it cannot listen there.
    """
    super().__init__()
    self._server = agent_server.AgentServer(conf, self._welcome)
    self._logs: dict[str, str] = {}
    self._peers: dict[str, Peer] = {}  # of the latest start of each task
    # The names that were requested and have not ended.
    self._left: set[str] = set()
    self._heard: collections.deque[tuple[Peer, links.Message | None]] = (
      collections.deque()
    )
    self._events: list[tuple[str, int | None]] = []

  def poll(
    self, timeout_secs: float | None = None
  ) -> list[tuple[str, int | None]]:
    secs = 0 if self._events else timeout_secs
    self._heard.extend(self._server.poll(secs))
    while self._heard:
      peer, message = self._heard.popleft()
      if self._peers.get(peer.name) is not peer:
        continue  # It is of an earlier start, and leaves.
      if message is None:
        self._drop(peer)
      else:
        self._read(peer, message)
    for peer in list(self._peers.values()):
      if peer.is_overdue:
        self._drop(peer)
    self._check_jobs()
    events, self._events = self._events, []
    return events

  @abc.abstractmethod
  def _welcome(self, link: links.Link, hello: links.Message) -> Peer | None:
    """Returns the Peer of a new connection, None to close it."""

  @abc.abstractmethod
  def _check_jobs(self) -> None:
    """Looks how Spark's jobs are.

    Raises:
      cli.RunError: no task can be started.
    """

  @abc.abstractmethod
  def _end(
    self,
    name: str,
    code: int,
    reason: str = '',
    report: dict[str, Any] | None = None,
  ) -> None:
    """Takes the end of a task.

    Args:
      reason: why, where the code does not say.
      report: the chief's, or None.
    """

  def _read(self, peer: Peer, message: links.Message) -> None:
    """Handles a message of an agent."""
    if isinstance(message.get('lines'), list):
      self._take_lines(peer.name, [str(line) for line in message['lines']])
    if isinstance(message.get('lost'), str):
      self._lose(peer.name, message['lost'][:300])
    if 'end' in message:
      self._take_end(peer, message['end'], message.get('report'))

  def _take_lines(self, name: str, lines: list[str]) -> None:
    task_logs.append_if_possible(self._logs[name], lines)

  def _take_end(self, peer: Peer, code: Any, report: Any) -> None:
    """Takes what an agent says of the end; `code` and `report`: of any type."""
    is_known = type(code) is int and -65 < code < 256
    if is_known or peer.num_stops:
      code = code if is_known else -signal.SIGTERM
      is_report = code == 0 and isinstance(report, dict)
      self._end(peer.name, code, report=report if is_report else None)
    else:
      reason = 'stopped by a signal that the driver did not send'
      self._end(peer.name, cli.LOST, reason)

  def _lose(self, name: str, reason: str) -> None:
    """Tells that a task is lost although it still runs."""
    if name in self._left:
      self.reasons.setdefault(name, reason)
      self._events.append((name, None))

  def _drop(self, peer: Peer) -> None:
    """Ends the task of an agent that is gone, or has not done as told."""
    peer.link.close()
    reason = f'lost connection to its executor {peer.executor}'
    self._end(peer.name, cli.LOST, reason)
