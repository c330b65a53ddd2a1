"""Spark's executors as a host of tasks, for launching/supervisor/task_group.py.

All tasks form one barrier stage, so they start and restart together: a Spark
job begins once every task has been requested. On each executor an agent
(spark/agent.py) connects here. Once all have, they are told to start their
tasks; they report log lines and ends, and are told to stop. They leave
together.
"""

import dataclasses
import os
import signal
import time

from distmnist.common import cli
from distmnist.launching import host as host_lib
from distmnist.launching.screen import task_logs
from distmnist.spark import agent_server, links

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

  def order_stop(self, signum):
    """Sends an order to stop, then one to stop at once, but neither twice."""
    num_stops = 2 if signum == signal.SIGKILL else 1
    while self.num_stops < num_stops:
      # The second order is the one without grace.
      self.link.send(stop=int(signal.SIGTERM))
      self.num_stops += 1
      if self.num_stops == 2:
        self.deadline = time.monotonic() + KILL_SECS

  @property
  def is_overdue(self):
    """Whether it was told to stop at once, and its time for that is over."""
    return self.deadline is not None and time.monotonic() > self.deadline

  def parse_end(self, code):
    """Returns (exit code, reason) for the `code`, of any type, it reported."""
    if type(code) is int and -65 < code < 256:
      return code, ''
    if self.num_stops:
      return -signal.SIGTERM, ''
    return cli.LOST, 'stopped by a signal that the driver did not send'


class ExecutorHost(host_lib.Host):
  """Runs the tasks of one training run. Signals raise, as in a Spark program.

  Attributes:
    report: dict, the chief's report, or None.
  """

  name = 'Spark'
  pid = os.getpid()

  def __init__(self, tasks, stage, conf, show):
    """Listens.

    Args:
      tasks: list of jobs.Task, whose addresses stand in for those that Spark
        will choose; a task's index here is its partition.
      stage: barrier_job.BarrierStage, which starts their agents.
      conf: pyspark.SparkConf.
      show: callable(name of a task, a line of its log).

    Raises:
      cli.RunError: it cannot listen there.
    """
    super().__init__()
    self.report = None
    self._places = {task.name: task.address for task in tasks}
    self._stage = stage
    self._show = show
    self._server = agent_server.AgentServer(conf, self._welcome)
    self._logs = {}
    self._peers = {}
    self._addresses = {}
    self._left = set()  # the names that were requested and have not ended
    self._events = []

  def __exit__(self, *error):
    for name in self._left & self._peers.keys():
      self._peers[name].order_stop(signal.SIGKILL)
    self._server.close()  # makes an agent end its task, if it still runs
    self._stage.end()

  def start(self, name, argv, env, log, is_isolated=False, title=''):
    self._logs[name] = log
    self._left.add(name)
    if len(self._left) == len(self._places):
      self._peers, self.is_ready = {}, False
      self._stage.submit(self._server.contact, self._server.wake)

  def signal(self, names, signum):
    if names and not self.is_ready:
      self.kill()
    for name in self._left.intersection(names):
      self._peers[name].order_stop(signum)

  def poll(self, timeout_secs=None):
    heard = self._server.poll(0 if self._events else timeout_secs)
    for peer, message in heard:
      if self._peers.get(peer.name) is not peer:
        continue  # It is from the previous attempt, and leaves.
      if message is None:
        self._drop(peer)
      else:
        self._read(peer, message)
    for peer in self._peers.values():
      if peer.is_overdue:
        self._drop(peer)
    if self._left and not any(p.num_stops for p in self._peers.values()):
      self._check_stage()
    events, self._events = self._events, []
    return events

  def kill(self):
    """Gives up an attempt that has not begun; there is nothing else to end."""
    self._stage.cancel()
    for name in list(self._left):
      self._end(name, -signal.SIGTERM)

  def restart(self):
    """Does nothing: the next start of the tasks begins a new job."""

  def check_end(self, has_failed):
    """Checks how Spark has ended the job; see barrier_job.BarrierStage."""
    self._stage.check_end(has_failed)

  def locate(self, text):
    """Returns `text` with the tasks' real addresses, once they are known."""
    for name, address in self._addresses.items():
      text = text.replace(f'({self._places[name]})', f'({address})')
    return text

  def _welcome(self, link, hello):
    """Returns the Peer of a new connection, None to close it."""
    name, attempt = hello.get('hello'), hello.get('attempt')
    is_expected = name in [*self._left] and type(attempt) is int
    is_expected &= agent_server.is_place(hello.get('address'))
    if not is_expected or attempt != self._stage.attempt:
      return None
    if name in self._peers:
      self._lose(name, 'Spark has started it once more')
      return None
    peer = self._peers[name] = Peer(name, hello['executor'], link)
    self._addresses[name] = hello['address']
    if len(self._peers) == len(self._places):
      self.is_ready = True
      for each in self._peers.values():
        each.link.send(go=True)
    return peer

  def _read(self, peer, message):
    if isinstance(message.get('lines'), list):
      lines = [str(line) for line in message['lines']]
      task_logs.append(self._logs[peer.name], lines)
      for line in lines:
        self._show(peer.name, line)
    if isinstance(message.get('lost'), str):
      self._lose(peer.name, message['lost'][:300])
    if 'end' in message:
      self._end(peer.name, *peer.parse_end(message['end']))
      if message['end'] == 0 and isinstance(message.get('report'), dict):
        self.report = message['report']

  def _lose(self, name, reason):
    if name in self._left:
      self.reasons.setdefault(name, reason)
      self._events.append((name, None))

  def _end(self, name, code, reason=''):
    if name not in self._left:
      return
    self._left.remove(name)
    self._events.append((name, code))
    if reason:
      self.reasons.setdefault(name, reason)
    if not self._left:
      for peer in self._peers.values():
        peer.link.send(leave=True)

  def _drop(self, peer):
    """Ends the task of an agent that is gone, or has not done as told."""
    peer.link.close()
    reason = f'lost connection to its executor {peer.executor}'
    self._end(peer.name, cli.LOST, reason)

  def _check_stage(self):
    """Checks that Spark starts the agents and has not given up the job."""
    missing = [name for name in self._places if name not in self._peers]
    has_agents = any(p.link.is_open for p in self._peers.values())
    if lost := self._stage.find_loss(missing, has_agents):
      self._end(missing[0], cli.LOST, lost)
