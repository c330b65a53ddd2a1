"""Spark's executors as a host of the tasks of one training run.

All tasks form one barrier stage, so they start and restart together: a Spark
job begins once every task has been requested. Once all agents have connected,
they are told to start their tasks. They leave together.
"""

import signal

from distmnist.common import cli
from distmnist.spark import agent_host, agent_server


class ExecutorHost(agent_host.AgentHost):
  """Runs the tasks of one training run. Signals raise, as in a Spark program.

  Attributes:
    report: dict, the chief's report, or None.
  """

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
    super().__init__(conf)
    self.report = None
    self._places = {task.name: task.address for task in tasks}
    self._stage = stage
    self._show = show
    self._addresses = {}

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

  def kill(self):
    """Gives up an attempt that has not begun; there is nothing else to end."""
    self._stage.cancel()
    for name in list(self._left):
      self._end(name, -signal.SIGTERM)

  def check_end(self, has_failed):
    """Checks how Spark has ended the job; see barrier_job.BarrierStage."""
    self._stage.check_end(has_failed)

  def locate(self, text):
    """Returns `text` with the tasks' real addresses, once they are known."""
    for name, address in self._addresses.items():
      text = text.replace(f'({self._places[name]})', f'({address})')
    return text

  def _welcome(self, link, hello):
    name, attempt = hello.get('hello'), hello.get('attempt')
    is_expected = name in [*self._left] and type(attempt) is int
    is_expected &= agent_server.is_place(hello.get('address'))
    if not is_expected or attempt != self._stage.attempt:
      return None
    if name in self._peers:
      self._lose(name, 'Spark has started it once more')
      return None
    peer = agent_host.Peer(name, hello['executor'], link)
    self._peers[name] = peer
    self._addresses[name] = hello['address']
    if len(self._peers) == len(self._places):
      self.is_ready = True
      for each in self._peers.values():
        each.link.send(go=True)
    return peer

  def _take_lines(self, name, lines):
    super()._take_lines(name, lines)
    for line in lines:
      self._show(name, line)

  def _end(self, name, code, reason='', report=None):
    if name not in self._left:
      return
    self._left.remove(name)
    self._events.append((name, code))
    self.report = report or self.report
    if reason:
      self.reasons.setdefault(name, reason)
    if not self._left:
      for peer in self._peers.values():
        peer.link.send(leave=True)

  def _check_jobs(self):
    """Checks that Spark starts the agents and has not given up the job."""
    if not self._left or any(p.num_stops for p in self._peers.values()):
      return
    missing = [name for name in self._places if name not in self._peers]
    has_agents = any(p.link.is_open for p in self._peers.values())
    if lost := self._stage.find_loss(missing, has_agents):
      self._end(missing[0], cli.LOST, lost)
