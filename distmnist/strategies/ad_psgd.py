"""AD-PSGD: asynchronous peers, each of which averages with a random other.

Lian, Zhang, Zhang, Liu 2018, arXiv 1710.06952, algorithm 1; Jin et al. 2016,
arXiv 1611.04581, average in the same way after the local step (gossiping SGD).
Worker i, at its step t from 1:

  g = g^i(x^i)
  if T divides t:  draw j;  d = (x^i - x^j) / 2;  x^i -= d;  x^j += d
  x^i <- LocalOpt(x^i, g)

g is taken before the average, as in the paper, where T = 1. j is one of n
equally likely nodes: the other n - 1 workers and the center x~, which computes
nothing. The center is what is evaluated, saved and restored, and where a worker
starts; the paper has no such node. 1 in n of a worker's exchanges is with the
center, so its ps carry no more than the exchanges that one worker begins. An
average does not change the sum of all copies. global_step counts all exchanges;
the staleness counts the others' between two exchanges of one worker.

x^i and the slots live on the worker; x~, the global_step and the record of
batches on the ps. No worker waits for another to compute. A worker that is lost
loses its x^i and restarts from the center; until then the others turn to the
center instead. A suspended worker holds up each of the others once, for seconds
(exchange/peers/peer.py).
"""

from __future__ import annotations

import contextlib
import functools
from typing import TYPE_CHECKING

import tensorflow.compat.v1 as tf

from distmnist.exchange.copies import local_copies, periodic_exchange
from distmnist.exchange.peers import meetings
from distmnist.transport import strategy, variable_lists

if TYPE_CHECKING:
  from distmnist.cluster.cluster import Cluster
  from distmnist.cluster.stop_request import StopRequest


def make(cluster: Cluster) -> AdPsgd:
  return AdPsgd(cluster, strategy.communication_period_from_flags(1))


class AdPsgd(strategy.Strategy):
  """Copies that average in pairs, and a center that is one of them."""

  has_local_steps = True
  has_center_optimizer = False
  needs_warmup = True

  def __init__(self, cluster: Cluster, communication_period: int = 1) -> None:
    super().__init__(cluster)
    self.batches_per_update = communication_period
    self.pull_period = self.push_period = communication_period
    self.share_with_ps = 1 / cluster.num_workers
    self._copies = local_copies.LocalCopies(cluster)
    self._meetings = None

  def scope(self) -> contextlib.AbstractContextManager[None]:
    return self._copies.scope()

  def minimize(
    self,
    loss: tf.Tensor,
    make_optimizer: strategy.MakeOptimizer,
    global_step: tf.Variable,
  ) -> strategy.Update:
    copies, period = self._copies, self.push_period
    with tf.name_scope('ad_psgd'):
      known_step = copies.make_counter(global_step.read_value(), 'known_step')
      optimizer = make_optimizer(is_local=True)
      gradients = copies.compute_gradients(optimizer, loss)
      if self.cluster.num_workers > 1:
        self._meetings = meetings.Meetings(self.cluster, copies)
      step = copies.count_local_step(gradients)

      def exchange() -> tuple[tf.Tensor, tf.Tensor]:
        with_center = self._average(step // period, global_step)
        has_moved = with_center if self._meetings else None
        return strategy.count_update(
          global_step,
          [with_center],
          known_step.read_value(),
          functools.partial(self.mark_done, has_moved=has_moved),
        )

      update = periodic_exchange.build_update(
        copies, period, step, exchange, known_step
      )
      with tf.control_dependencies([update.train_op, update.staleness]):
        gradients = [tf.identity(g) for g in gradients]
        # Others add to x^i at any time, but an update locks its variable, too.
        moved = copies.local_step(optimizer, gradients)
      with tf.control_dependencies([moved]):
        return self._count_visits(update)

  def _average(self, number: tf.Tensor, global_step: tf.Variable) -> tf.Tensor:
    """Does exchange `number`.

    Returns:
      bool scalar tensor, whether it was with the center.
    """

    def with_center() -> tf.Tensor:
      pairs = zip(copies.read(), copies.read_center(), strict=True)
      changes = copies.round_as_sent([(x - y) / 2 for x, y in pairs])
      parts, shards = zip(*copies.to_shards(changes), strict=True)
      added = variable_lists.add_all(shards, parts)
      moved = copies.add([-d for d in changes])
      # On the device where the exchange is then counted.
      with (
        tf.device(global_step.device),
        tf.control_dependencies([added, moved]),
      ):
        return tf.constant(True)

    copies = self._copies
    if not self._meetings:
      return with_center()
    met = self._meetings.build_meeting(number)
    return tf.cond(
      tf.equal(met, meetings.CENTER), with_center, lambda: tf.constant(False)
    )

  def _count_visits(self, update: strategy.Update) -> strategy.Update:
    """Returns `update` plus the bytes of exchanges that others have begun."""
    train_op = tf.identity(update.train_op)
    if not self._meetings:
      return update._replace(train_op=train_op)
    visits = self._meetings.take_visits()
    num_bytes = update.bytes_pulled + visits * self._copies.num_bytes
    return strategy.Update(train_op, update.staleness, num_bytes, num_bytes)

  def hooks(self, stop: StopRequest) -> list[tf.train.SessionRunHook]:
    del stop
    return [self._meetings.hook()] if self._meetings else []
