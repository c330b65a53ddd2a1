"""Staleness-aware asynchronous SGD: a stale gradient takes a smaller step.

Zhang, Gupta, Lian, Liu 2015, arXiv 1511.05950, section 3.2. Worker i:

  pull x~ at clock c_i;  g = g^i(x~)
  s = c - c_i;  x~ <- Opt(x~, g) with the rate eta / max(1, s);  c += 1

x~ is the center, c its clock (global_step), s the staleness: the updates by
others between the pull and the push. s is read and used under one lock, so it
is exact.

The center and slots live on the ps, the pulled copy on the worker. A worker
waits for the lock only while another's update is applied. If a worker dies,
only its speed is lost; the lock, if it holds it, is released.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

import tensorflow.compat.v1 as tf

from distmnist.exchange import locked_center
from distmnist.exchange.copies import local_copies
from distmnist.transport import strategy

if TYPE_CHECKING:
  from distmnist.cluster.cluster import Cluster
  from distmnist.cluster.stop_request import StopRequest


def make(cluster: Cluster) -> StalenessAware:
  return StalenessAware(cluster)


class StalenessAware(strategy.Strategy):
  """Divides the rate of a push by its staleness."""

  needs_warmup = True
  takes_tables = True

  def __init__(self, cluster: Cluster) -> None:
    super().__init__(cluster)
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
    with tf.name_scope('staleness_aware'):
      self._center = locked_center.AtomicCenter(
        copies, global_step, mark_done=self.mark_done
      )
      gradients = copies.compute_gradients(make_optimizer(), loss)

      def apply(
        pairs: Sequence[tuple[tf.Tensor, tf.Variable]], staleness: tf.Tensor
      ) -> tf.Operation:
        factor = 1 / tf.cast(tf.maximum(staleness, 1), tf.float32)
        return make_optimizer(rate_factor=factor).apply_gradients(pairs)

      new_step, staleness = self._center.exchange(gradients, apply)
      return strategy.Update(new_step, staleness, *copies.count_bytes())

  def hooks(self, stop: StopRequest) -> list[tf.train.SessionRunHook]:
    return [self._center.hook()]
