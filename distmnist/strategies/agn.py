"""Accumulated gradient normalization (AGN; ADAG in dist-keras).

Hermans, Spanakis, Moeckel 2017, arXiv 1710.02368, section 3. Worker i:

  a = 0
  T times { g = g^i(x^i);  a += g;  x^i <- LocalOpt(x^i, g) }
  x~ <- Opt(x~, a / T);  x^i <- x~

x~ is the center and T the communication period (the paper's lambda): the
worker explores T steps ahead and pushes their mean gradient. That has the size
of one, so the center stays stable however large T is. T = 1 is DOWNPOUR.

The center and its slots live on the ps; x^i, its slots and the sum a on the
worker. No worker waits for another. If one dies, its speed and up to T
gradients that it has not pushed are lost; the others go on.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import tensorflow.compat.v1 as tf

from distmnist.exchange.copies import local_copies, periodic_exchange
from distmnist.transport import strategy, variable_lists

if TYPE_CHECKING:
  from distmnist.cluster.cluster import Cluster


def make(cluster: Cluster) -> Agn:
  return Agn(cluster, strategy.communication_period_from_flags(10))


class Agn(strategy.Strategy):
  """Applies the mean of T local gradients to the center as one gradient."""

  has_local_steps = True
  needs_warmup = True

  def __init__(self, cluster: Cluster, communication_period: int) -> None:
    super().__init__(cluster)
    self.batches_per_update = communication_period
    self.pull_period = self.push_period = communication_period
    self._copies = local_copies.LocalCopies(cluster)

  def scope(self) -> contextlib.AbstractContextManager[None]:
    return self._copies.scope()

  def minimize(
    self,
    loss: tf.Tensor,
    make_optimizer: strategy.MakeOptimizer,
    global_step: tf.Variable,
  ) -> strategy.Update:
    copies, period = self._copies, self.batches_per_update
    with tf.name_scope('agn'):
      pulled_step = copies.make_counter(global_step.read_value(), 'pulled_step')
      totals, step = copies.sum_and_step(make_optimizer(is_local=True), loss)

      def exchange() -> tuple[tf.Tensor, tf.Tensor]:
        pairs = copies.to_shards(copies.read_totals(totals, period))
        with tf.device(global_step.device):  # Where all ps meet.
          push = make_optimizer().apply_gradients(pairs, global_step)
        new_step = strategy.read_after(global_step, self.mark_done([push]))
        # The pull includes at least this worker's own push.
        with tf.control_dependencies([new_step]):
          parts = copies.read_shards()
        staleness = new_step - 1 - pulled_step.read_value()
        with tf.control_dependencies([staleness]):
          cleared = variable_lists.clear_all(totals)
        pulled = copies.assign(copies.from_shards(parts))
        with tf.control_dependencies([pulled, cleared]):
          return tf.identity(new_step), tf.identity(staleness)

      return periodic_exchange.build_update(
        copies, period, step, exchange, pulled_step
      )
