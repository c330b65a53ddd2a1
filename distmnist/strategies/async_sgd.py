"""Asynchronous SGD: Hogwild! with between-graph replication.

Recht et al. 2011, arXiv 1106.5730. Each worker, at its own pace:

  pull x~;  g = g^i(x~_{c-s});  x~ <- Opt(x~, g)

x~ is the center on the ps, g^i the gradient of worker i's batch, c the
global_step and s the staleness: the updates by others between this worker's
pull and its push. With n equally fast workers s is n - 1 on average, times the
share of a step that lies between its pull and its push.

Variables and optimizer slots live on the ps; a worker keeps nothing, or with
--pull_ahead=1 a copy of the center that is one pull older. No worker waits for
another: if one dies, only its speed is lost.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import tensorflow.compat.v1 as tf

from distmnist.exchange import pull_ahead
from distmnist.transport import strategy

if TYPE_CHECKING:
  from distmnist.cluster.cluster import Cluster


def make(cluster: Cluster) -> AsyncSgd:
  return AsyncSgd(cluster, pull_ahead.is_wanted())


class AsyncSgd(pull_ahead.PullingStrategy):
  """One unlocked update of the center per step and worker."""

  def minimize(
    self,
    loss: tf.Tensor,
    make_optimizer: strategy.MakeOptimizer,
    global_step: tf.Variable,
  ) -> strategy.Update:
    with tf.name_scope('async_sgd'):
      optimizer = make_optimizer()
      read_step = self._center.read_step(global_step)
      gradients = self._center.compute_gradients(optimizer, loss)
      pairs = self._center.to_shards(gradients)
      with tf.device(global_step.device):  # Where all ps meet.
        apply = optimizer.apply_gradients(pairs)
      new_step, staleness = strategy.count_update(
        global_step, [apply], read_step, self.mark_done
      )
      new_step, staleness = self._center.take_next([new_step, staleness])
      return strategy.Update(new_step, staleness, *self._center.count_bytes())
