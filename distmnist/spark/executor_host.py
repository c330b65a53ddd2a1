"""Spark's executors as a host of the tasks of one training run.

All tasks form one barrier stage: Spark starts all of them or none, and gives up
the job when one is lost. So they start and restart together: a job is submitted
once every task has been requested. Once all agents have connected, they are
told to start their tasks. They leave together.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from distmnist.common import cli, console
from distmnist.launching import host as host_lib
from distmnist.launching import jobs
from distmnist.spark import agent_host, agent_server, links, spark_job

if TYPE_CHECKING:
  import pyspark


# Called with the attempt's number, AgentServer.contact and what to call at the
# job's end; the job is not started yet.
MakeJob = Callable[[int, dict[str, Any], Callable[[], None]], spark_job.Job]


class ExecutorHost(agent_host.AgentHost):
  """Runs the tasks of one training run. Signals raise, as in a Spark program.

  Attributes:
    report: the chief's report, or None.
  """

  def __init__(
    self,
    tasks: Iterable[jobs.Task],
    make_job: MakeJob,
    wait_for_slots: Callable[[], None],
    start: tuple[str, float],
    conf: pyspark.SparkConf,
    show: Callable[[str, str], None],
  ) -> None:
    """Listens.

    Args:
      tasks: whose addresses stand in for those that Spark will choose; a task's
        index here is its partition.
      wait_for_slots: returns once Spark can start all tasks.
      start: what Spark does until the agents are connected, and
        the seconds it may take.
      show: called with a task's name and a line of its log.

    Raises:
      cli.RunError: it cannot listen there.
    """
    super().__init__(conf)
    self.report: dict[str, Any] | None = None
    self._places = {task.name: task.address for task in tasks}
    self._make_job, self._wait_for_slots = make_job, wait_for_slots
    self._verb, self._start_secs = start
    self._show = show
    self._addresses: dict[str, str] = {}
    self._attempt = 0  # how often a job was submitted
    self._is_submitted = False  # whether one was for what is requested now
    self._job: spark_job.Job | None = None
    self._deadline: float | None = None

  def __exit__(self, *error: object) -> None:
    for name in self._left & self._peers.keys():
      self._peers[name].order_stop(signal.SIGKILL)
    self._server.close()  # makes an agent end its task, if it still runs
    if self._job:
      self._job.end()

  def start(self, request: host_lib.Request) -> None:
    self._logs[request.name] = request.log
    if not self._left:
      self._peers, self.is_ready, self._is_submitted = {}, False, False
    self._left.add(request.name)
    if len(self._left) == len(self._places):
      self._is_submitted = True
      self._submit()

  def signal(self, names: Iterable[str], signum: int) -> None:
    if names and not self.is_ready:
      self.kill()
    for name in self._left.intersection(names):
      self._peers[name].order_stop(signum)

  def kill(self) -> None:
    """Gives up an attempt that has not begun; there is nothing else to end."""
    if self._job:
      self._job.cancel()
    for name in list(self._left):
      self._end(name, -signal.SIGTERM)

  def check_end(self, has_failed: bool) -> None:
    """Checks how Spark has ended the job.

    Args:
      has_failed: whether a task has failed, which explains the job's error
        unless the job was cancelled.

    Raises:
      cli.RunError: Spark has given up the job.
    """
    job = self._job
    if not job or not job.error:
      return
    # One that we have cancelled was done: Spark was slow to see it.
    if job.is_cancelled or not (job.is_ours or has_failed):
      raise _explain(job)

  def locate(self, text: str) -> str:
    """Returns `text` with the tasks' real addresses, once they are known."""
    for name, address in self._addresses.items():
      text = text.replace(f'({self._places[name]})', f'({address})')
    return text

  def _welcome(
    self, link: links.Link, hello: links.Message
  ) -> agent_host.Peer | None:
    name, attempt = hello.get('hello'), hello.get('attempt')
    if not isinstance(name, str) or name not in self._left:
      return None
    if type(attempt) is not int or attempt != self._attempt:
      return None
    if not agent_server.is_place(hello.get('address')):
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

  def _take_lines(self, name: str, lines: list[str]) -> None:
    super()._take_lines(name, lines)
    for line in lines:
      self._show(name, line)

  def _end(
    self,
    name: str,
    code: int,
    reason: str = '',
    report: dict[str, Any] | None = None,
  ) -> None:
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

  def _submit(self) -> None:
    """Has Spark start all agents, once the previous ones are gone.

    Raises:
      cli.RunError: the previous job was cancelled, but not by us, or there are
        too few slots for another one.
    """
    if self._job:
      self._job.end()
      self.check_end(has_failed=True)
      self._wait_for_slots()
    self._attempt += 1
    self._deadline = None
    contact, on_end = self._server.contact, self._server.wake
    self._job = self._make_job(self._attempt, contact, on_end)
    self._job.start()
    self._wait = console.Wait(self._start_secs)

  def _check_jobs(self) -> None:
    """Checks that Spark starts the agents and has not given up the job."""
    job = self._job
    is_told = any(peer.num_stops for peer in self._peers.values())
    if not job or not self._left or not self._is_submitted or is_told:
      return
    missing = [name for name in self._places if name not in self._peers]
    if job.has_ended:
      # Agents that Spark has abandoned say so within a few seconds.
      now = time.monotonic()
      self._deadline = self._deadline or now + spark_job.END_SECS
      has_agents = any(p.link.is_open for p in self._peers.values())
      if not has_agents or now > self._deadline:
        lost = spark_job.find_lost_executor(job.error) if missing else None
        if not lost:
          raise _explain(job)
        self._end(missing[0], cli.LOST, lost)
        return
    what = f'for Spark to {self._verb} {", ".join(missing)}'
    if missing and self._wait.is_over(what):
      raise cli.LostError(
        f'waited {self._start_secs:g} s {what}: are the executors still'
        ' there, and their slots free?'
      )


def _explain(job: spark_job.Job) -> cli.RunError:
  return cli.RunError(f'Spark has given up the job: {job.explain()}')
