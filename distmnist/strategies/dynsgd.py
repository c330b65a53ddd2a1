"""DynSGD: the staler the change of T local steps is, the less it counts.

Jiang, Cui, Zhang, Yu 2017, "Heterogeneity-aware Distributed Parameter Servers"
(SIGMOD), in the simple form of Hermans' dist-keras. Worker i:

  pull x~ at clock c_i:  x^i = x~;  T times x^i <- LocalOpt(x^i, g^i(x^i))
  Delta = x^i - (x^i as pulled);  s = c - c_i
  x~ <- x~ + Delta / (s + 1);  c += 1;  x^i <- x~

x~ is the center, c its clock (global_step, one per push), T the communication
period, s the staleness: the pushes by others since the pull. s is read and
used under one lock, so it is exact.

The center lives on the ps; x^i, its slots and the values as pulled on the
worker. A worker waits for the lock only while another's push is applied. If a
worker dies, its speed and up to T local steps are lost; the others go on. The
lock, if it holds it, is released.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

import tensorflow.compat.v1 as tf

from distmnist.exchange import locked_center
from distmnist.exchange.copies import local_copies, periodic_exchange
from distmnist.transport import strategy

if TYPE_CHECKING:
  from distmnist.cluster.cluster import Cluster
  from distmnist.cluster.stop_request import StopRequest


def make(cluster: Cluster) -> DynSgd:
  return DynSgd(cluster, strategy.communication_period_from_flags(5))


class DynSgd(strategy.Strategy):
  """Local changes, weighted by 1 / (staleness + 1)."""

  has_local_steps = True
  has_center_optimizer = False
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
    copies = self._copies
    with tf.name_scope('dynsgd'):
      optimizer = make_optimizer(is_local=True)
      gradients = copies.compute_gradients(optimizer, loss)
      as_pulled = copies.make_zeros('as_pulled')
      self._center = locked_center.AtomicCenter(
        copies,
        global_step,
        keep_whole=as_pulled,
        mark_done=self.mark_done,
      )
      step = copies.count_local_step([copies.local_step(optimizer, gradients)])

      def add(
        pairs: Sequence[tuple[tf.Tensor, tf.Variable]], staleness: tf.Tensor
      ) -> tf.Operation:
        added = []
        for change, shard in pairs:
          # Otherwise all changes would go through the ps with the lock.
          with tf.device(shard.device):
            part = change / tf.cast(staleness + 1, change.dtype)
            added.append(shard.assign_add(part, read_value=False))
        return tf.group(*added)

      def exchange() -> tuple[tf.Tensor, tf.Tensor]:
        return self._center.exchange(copies.read_changes(as_pulled), add)

      return periodic_exchange.build_update(
        copies,
        self.batches_per_update,
        step,
        exchange,
        self._center.pulled_step,
      )

  def hooks(self, stop: StopRequest) -> list[tf.train.SessionRunHook]:
    return [self._center.hook()]
