"""Synchronous AGN: all workers' means of T local gradients make one update.

After tmulc18's Distributed-TensorFlow-Guide (Synchronous-SGD and ADAG
combined); the local rounds are those of arXiv 1710.02368. In lock-step:

  u^i = (1/T) sum of T gradients, with x^i <- LocalOpt(x^i, g^i(x^i)) each
  x~ <- Opt(x~, (1/R) sum_{i=1..R} u^i);  x^i <- x~ for all

x~ is the center, T the communication period, R = replicas_to_aggregate: all n
workers by default. With R < n the u^i that come late are dropped.

The center, its slots and the accumulators of u live on the ps; x^i, its slots
and the sum of gradients on the worker. After T steps all workers wait until R
have contributed; so with R = n they wait for a worker that died, until it is
back.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import tensorflow.compat.v1 as tf

from distmnist.exchange.copies import local_copies, periodic_exchange
from distmnist.exchange.rounds import sync_round
from distmnist.transport import strategy, variable_lists

if TYPE_CHECKING:
  from distmnist.cluster.cluster import Cluster
  from distmnist.cluster.stop_request import StopRequest


def make(cluster: Cluster) -> Sagn:
  return Sagn(
    cluster,
    strategy.communication_period_from_flags(5),
    strategy.replicas_to_aggregate_from_flags(cluster),
  )


class Sagn(strategy.Strategy):
  """T local steps per worker, then one update from all of them."""

  has_local_steps = True
  max_staleness = 0
  waits_for_all = True

  def __init__(
    self,
    cluster: Cluster,
    communication_period: int,
    replicas_to_aggregate: int,
  ) -> None:
    super().__init__(cluster)
    self.pull_period = self.push_period = communication_period
    self._num_contributions = replicas_to_aggregate
    self.is_lock_step = replicas_to_aggregate == cluster.num_workers
    self.batches_per_update = communication_period * replicas_to_aggregate
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
    with tf.name_scope('sagn'):
      totals, step = copies.sum_and_step(make_optimizer(is_local=True), loss)
      self._round = sync_round.make_round(
        self.cluster, self._num_contributions, global_step, copies
      )
      self._round.build_update(
        lambda means: make_optimizer().apply_gradients(
          list(zip(means, copies.shards, strict=True))
        )
      )

      known_step = copies.make_counter(global_step.read_value(), 'known_step')

      def exchange() -> tuple[tf.Tensor, tf.Tensor]:
        means = copies.read_totals(totals, self.pull_period)
        new_step, staleness = self._round.push_and_wait(
          copies.to_shards(means), mark_done=self.mark_done
        )
        with tf.control_dependencies([new_step]):
          done = [copies.pull(), variable_lists.clear_all(totals)]
        with tf.control_dependencies(done):
          return tf.identity(new_step), tf.identity(staleness)

      return periodic_exchange.build_update(
        copies, self.pull_period, step, exchange, known_step
      )

  def hooks(self, stop: StopRequest) -> list[tf.train.SessionRunHook]:
    return [self._round.hook(stop, self._copies.pull())]
