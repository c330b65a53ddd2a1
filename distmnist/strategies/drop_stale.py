"""Drop-stale gradients: a gradient that is too old is not applied at all.

After tf.contrib.opt's DropStaleGradientOptimizer (TensorFlow 1). Worker i:

  pull x~ at clock c_i;  g = g^i(x~);  s = c - c_i
  if s <= max_staleness:  x~ <- Opt(x~, g);  c += 1
  else:                   g is dropped, and counted

x~ is the center, c its clock (global_step, the updates that were applied), s
the staleness: the updates by others between the pull and the push. s is read
and judged under one lock. A dropped gradient is wasted work, but its worker
gets a fresh copy.

The center and slots live on the ps, the pulled copy on the worker. A worker
waits for the lock only while another's update is applied. If a worker dies,
only its speed is lost; the lock, if it holds it, is released.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import tensorflow.compat.v1 as tf

from distmnist.exchange import locked_center
from distmnist.exchange.copies import local_copies
from distmnist.transport import strategy

if TYPE_CHECKING:
  from distmnist.cluster.cluster import Cluster
  from distmnist.cluster.stop_request import StopRequest


def make(cluster: Cluster) -> DropStale:
  return DropStale(cluster, strategy.max_staleness_from_flags(3))


class DropStale(strategy.Strategy):
  """Applies gradients as async_sgd does, up to a maximum staleness."""

  needs_warmup = True
  takes_tables = True

  def __init__(self, cluster: Cluster, max_staleness: int) -> None:
    super().__init__(cluster)
    self.max_staleness = max_staleness
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
    with tf.name_scope('drop_stale'):
      self._center = locked_center.AtomicCenter(
        copies,
        global_step,
        max_staleness=self.max_staleness,
        mark_done=self.mark_done,
      )
      optimizer = make_optimizer()
      gradients = copies.compute_gradients(optimizer, loss)
      new_step, staleness = self._center.exchange(
        gradients, lambda pairs, _: optimizer.apply_gradients(pairs)
      )
      return strategy.Update(new_step, staleness, *copies.count_bytes())

  def hooks(self, stop: StopRequest) -> list[tf.train.SessionRunHook]:
    return [self._center.hook()]
