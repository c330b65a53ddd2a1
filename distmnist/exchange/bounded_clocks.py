"""Clocks of all workers on a ps: none is more than S steps ahead.

c^i counts the steps of worker i, which may start its next one if and only if
c^i - min_j c^j <= S (Ho et al. 2013, see strategies/ssp.py). Each time the
least clock rises, every worker gets a permit in its own queue; a worker takes
one at the end of each step.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING

import tensorflow.compat.v1 as tf

from distmnist import tf_internals
from distmnist.exchange.center import ps_lock
from distmnist.exchange.rounds import round_waits
from distmnist.transport import strategy

if TYPE_CHECKING:
  from distmnist.cluster.cluster import Cluster
  from distmnist.cluster.stop_request import StopRequest


# The clock of a worker that has left; no other waits for it.
_NEVER = 2**62
# A worker that is asked to stop gets this many permits at a time: each step
# left in its session.run takes one.
_NUM_OFFERED, _OFFER_SECS = 16, 0.1


class Clocks:
  """The vector c and the permits, all on one ps and changed under one lock.

  The clocks are in no collection: a ps that comes back starts them anew, and
  no checkpoint saves them.
  """

  def __init__(self, cluster: Cluster, bound: int, device: str) -> None:
    """
    Args:
      bound: S.
      device: the device of the global_step.
    """
    self._bound = bound
    self._worker = cluster.task_index
    self._device = device
    with tf.device(device):
      self._clocks = tf.Variable(
        tf.zeros([cluster.num_workers], tf.int64),
        trainable=False,
        collections=[],
        name='clocks',
      )
      self._lock = ps_lock.Lock(device, 'clocks_lock')
      self._permits = [
        tf.FIFOQueue(-1, tf.bool, (), shared_name=f'ssp/permits_{i}')
        for i in range(cluster.num_workers)
      ]
      self.state = (
        self._clocks.read_value(),
        tf.stack([queue.size() for queue in self._permits]),
      )
      self.enter, self.leave = self._build_enter(), self._advance(_NEVER)
      self.offer = self._permits[self._worker].enqueue_many(
        [tf.fill([_NUM_OFFERED], True)]
      )

  def tick_and_wait(self, ops: Sequence[tf.Operation | tf.Tensor]) -> tf.Tensor:
    """Returns the op that counts a step and waits for a permit, after `ops`."""
    with tf.control_dependencies(ops), tf.device(self._device):
      ticked = self._advance(None)
    with tf.control_dependencies([ticked]), tf.device(self._device):
      return self._permits[self._worker].dequeue()

  def _advance(self, new_clock: int | None) -> tf.Tensor:
    """Sets this worker's clock to `new_clock`; None adds one to it."""

    def advance() -> tf.Tensor:
      clocks = self._clocks.read_value()
      new = clocks[self._worker] + 1 if new_clock is None else new_clock
      least, after = self._set(clocks, new)
      # All have left if the least is _NEVER: none needs a permit.
      num_permits = tf.where(after < _NEVER, after - least, 0)
      with tf.control_dependencies(
        [
          queue.enqueue_many([tf.fill([num_permits], True)])
          for queue in self._permits
        ]
      ):
        return tf.identity(after)

    return self._lock.execute(advance)

  def _build_enter(self) -> tf.Tensor:
    """Lets a worker that starts, or comes back, join the others."""

    def enter() -> tf.Tensor:
      clocks = tf.cond(
        tf.is_variable_initialized(self._clocks),
        self._clocks.read_value,
        lambda: tf.zeros_like(self._clocks.initial_value),
      )
      own = clocks[self._worker]
      others = tf.concat(
        [clocks[: self._worker], clocks[self._worker + 1 :], [_NEVER]], 0
      )
      slowest = tf.reduce_min(others)
      # After all others have left there is no clock to compare with.
      slowest = tf.where(slowest < _NEVER, slowest, 0)
      own = tf.where(own < _NEVER, own, slowest)
      # It may have died while waiting, one step further than it may go.
      own = tf.where(
        tf.reduce_min(others) < _NEVER,
        tf.minimum(own, slowest + self._bound),
        own,
      )
      _, least = self._set(clocks, own)
      permits = self._permits[self._worker]
      drain = permits.dequeue_many(tf.cast(permits.size(), tf.int32))
      with tf.control_dependencies([drain, least]):
        fill = permits.enqueue_many(
          [tf.fill([self._bound + least - own], True)]
        )
      with tf.control_dependencies([fill]):
        return tf.identity(least)

    return self._lock.execute(enter)

  def _set(
    self, clocks: tf.Tensor, own: int | tf.Tensor
  ) -> tuple[tf.Tensor, tf.Tensor]:
    """Sets this worker's clock to `own`; returns the least (before, after)."""
    new = tf.tensor_scatter_nd_update(clocks, [[self._worker]], [own])
    with tf.control_dependencies([self._clocks.assign(new)]):
      return tf.reduce_min(clocks), tf.reduce_min(new)


class ClocksHook(strategy.CenterHook):
  """Joins the clocks at the start, and ends a wait for a permit on request."""

  def __init__(self, clocks: Clocks, stop: StopRequest) -> None:
    """
    Args:
    """
    self._clocks = clocks
    self._stop = stop
    self._session = None
    self._has_left = threading.Event()

  def begin(self) -> None:
    self._stop.on_request(self._leave_the_wait)

  def after_create_session(
    self, session: tf.Session, coord: tf.train.Coordinator
  ) -> None:
    session.run(self._clocks.enter)
    self._session = session

  def describe_wait(self) -> str:
    if self._session is None:
      return ''
    try:
      clocks, permits = round_waits.read(
        self._session.sess_str,
        self._session.graph,
        tf_internals.get_config(self._session),
        self._clocks.state,
      )
    except tf.errors.OpError as error:
      return f'the clocks cannot be read ({type(error).__name__})'
    return format_state(clocks, permits)

  def end(self, session: tf.Session) -> None:
    self._has_left.set()
    session.run(self._clocks.leave)

  def _leave_the_wait(self) -> None:
    if self._session is None:
      return
    with contextlib.suppress(tf.errors.OpError, RuntimeError):
      while not self._has_left.is_set():
        self._session.run(self._clocks.offer)
        self._has_left.wait(_OFFER_SECS)


def format_state(clocks: Sequence[int], permits: Sequence[int]) -> str:
  """Returns a line about the clocks and permits, int arrays [num_workers]."""
  texts = [
    f'worker {i} '
    + (f'at step {clock}' if clock < _NEVER else 'has left')
    + f' with {permits[i]} permits'
    for i, clock in enumerate(clocks)
  ]
  return f'the clocks: {", ".join(texts)}'
