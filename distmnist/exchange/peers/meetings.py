"""A worker's partner for an average, and a step's wait for it.

A step puts the number of its exchange into one queue of its own worker and
takes from another whom that worker has met. A thread between the two runs the
exchange in its own session (peer.py): an op that ran it would hold one of the
server's few threads, which this exchange and those of all others need.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

import tensorflow.compat.v1 as tf

from distmnist import tf_internals
from distmnist.data import seeds
from distmnist.exchange.peers import peer

if TYPE_CHECKING:
  from distmnist.cluster.cluster import Cluster
  from distmnist.exchange.copies.local_copies import LocalCopies


# Stands for the center where a worker is expected.
CENTER = -1


def choose(worker: int, number: int, num_workers: int) -> int:
  """Returns whom a worker is to meet: another worker, or CENTER.

  Each of the other n - 1 workers and the center is equally likely. The draw
  depends on the arguments alone.

  Args:
    worker: the task_index.
    number: of the exchange, from 1.
    num_workers: n.
  """
  nodes = [CENTER, *(i for i in range(num_workers) if i != worker)]
  return nodes[seeds.derive('peer', worker, number) % num_workers]


class Meetings:
  """The exchanges that this worker begins with others.

  Attributes:
    num_visits: int64 local variable, the exchanges that others have begun with
      this worker since it was last reset.
  """

  def __init__(self, cluster: Cluster, copies: LocalCopies) -> None:
    """
    Args:
      cluster: of two workers or more.
    """
    self._worker, self._num_workers = cluster.task_index, cluster.num_workers
    self._device = cluster.cpu_device
    self.num_visits = copies.make_counter(0, 'num_visits')
    self.peers = {
      index: peer.Peer(cluster, index, copies, self.num_visits)
      for index in range(cluster.num_workers)
      if index != cluster.task_index
    }
    self._wanted, self._met = self._build_queues()

  def _build_queues(self) -> tuple[tf.FIFOQueue, tf.FIFOQueue]:
    with tf.device(self._device):
      wanted, met = (
        tf.FIFOQueue(-1, tf.int64, (), shared_name=f'peers/{name}')
        for name in ('wanted', 'met')
      )
      return wanted, met

  def build_meeting(self, number: tf.Tensor) -> tf.Tensor:
    """Meets the worker that is next, or the center if that one is not there.

    Args:
      number: int64 scalar tensor, of the exchange.

    Returns:
      int64 scalar tensor: the worker with which the exchange was done, or
      CENTER, with which it is still to be done.
    """
    with tf.device(self._device):
      asked = self._wanted.enqueue(number)
      with tf.control_dependencies([asked]):
        return tf.ensure_shape(self._met.dequeue(), ())

  def take_visits(self) -> tf.Tensor:
    """Returns num_visits, an int64 scalar tensor, and resets it."""
    with tf.device(self._device):
      number = self.num_visits.read_value()
      taken = self.num_visits.assign_sub(number, read_value=False)
      with tf.control_dependencies([taken]):
        return tf.identity(number)

  def hook(self) -> _Hook:
    return _Hook(self)

  def meet(self, number: int) -> int:
    """Returns whom this worker has met."""
    chosen = choose(self._worker, number, self._num_workers)
    if chosen != CENTER and self.peers[chosen].meet():
      return chosen
    return CENTER

  def make_server(
    self, session: tf.Session, coord: tf.train.Coordinator
  ) -> _Server:
    """Returns the _Server that answers the steps of `session`."""
    for each in self.peers.values():
      each.connect(session)
    with tf.Graph().as_default() as graph:
      wanted, met = self._build_queues()
      with tf.device(self._device):
        clear = [q.dequeue_many(q.size()) for q in (wanted, met)]
        take, answer = wanted.dequeue(), tf.placeholder(tf.int64, ())
        with tf.control_dependencies([met.enqueue(answer)]):
          answer_and_take = wanted.dequeue()
    config = tf_internals.get_config(session)
    own = tf.Session(session.sess_str, graph, config)
    # What an interrupted step has left there.
    own.run(clear)

    def serve() -> None:
      number = own.run(take)
      while True:
        met = self.meet(int(number))
        number = own.run(answer_and_take, {answer: met})

    return _Server(own, serve, session, coord)


class _Server:
  """The thread between the two queues."""

  def __init__(
    self,
    own: tf.Session,
    serve: Callable[[], None],
    session: tf.Session,
    coord: tf.train.Coordinator,
  ) -> None:
    self._own, self._serve = own, serve
    self._session, self._coord = session, coord
    self._is_over = False
    self._thread = threading.Thread(target=self._run, daemon=True)
    self._thread.start()

  def end(self) -> None:
    """Ends the thread; waits for an exchange, which has a time limit."""
    self._is_over = True
    self._own.close()
    self._thread.join()

  def _run(self) -> None:
    try:
      self._serve()
    except (tf.errors.OpError, RuntimeError) as error:
      if not self._is_over:
        # A step may wait for an answer: closing its session wakes it.
        with contextlib.suppress(Exception):
          self._coord.request_stop(error)
          self._session.close()


class _Hook(tf.train.SessionRunHook):
  """Runs a _Server for the steps of each session."""

  def __init__(self, meetings: Meetings) -> None:
    self._meetings = meetings
    self._server: _Server | None = None

  def after_create_session(
    self, session: tf.Session, coord: tf.train.Coordinator
  ) -> None:
    if self._server:
      self._server.end()
    self._server = self._meetings.make_server(session, coord)

  def end(self, session: tf.Session) -> None:
    if self._server:
      self._server.end()
    for each in self._meetings.peers.values():
      each.leave()
