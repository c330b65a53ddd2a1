"""Synchronous SGD with backup workers, by a round of all for each update.

Chen et al. 2016, arXiv 1604.00981. Each update takes the first R gradients of
its step and drops later ones:

  x~ <- Opt(x~, (1/R) sum_{j=1..R} g^j(x~))

R is replicas_to_aggregate, N = total_num_replicas the number of workers. R = N
(the default) is lock-step: one gradient per worker and update. R < N leaves
N - R backup workers. R > N: a worker contributes several batches to an update.

Where the loss of a batch is divided by what counts in it, w^j, as by the sum of
a mask, the mean is (1 / sum_j w^j) sum_j w^j g^j instead: w^j g^j is pushed,
and w^j with it (Strategy.weigh_by).

With --worker_learning_rates (after tmulc18's synchronous SGD with different
rates; plain SGD, R = N) worker i's gradient counts as g^i n lr_i / base, base
being the optimizer's rate, so that the mean becomes

  x~ <- x~ - sum_i lr_i g^i(x~)

Variables, slots, gradient accumulators and token queues live on the ps. A
worker pushes its gradients and waits for a token, which a thread of the chief
hands out after each update. With R = N all wait for a dead worker to return.

With --sync_barrier=step TensorFlow's SyncReplicasOptimizer does this with a
round of ours: exchange/rounds/sync_replicas.py. With --sync_barrier=shard they
wait by shard: exchange/rounds/shard_barrier.py, docs/life.md.
"""

from __future__ import annotations

import contextlib
import math
from typing import TYPE_CHECKING, Any

import tensorflow.compat.v1 as tf
from absl import flags

from distmnist.common import cli
from distmnist.exchange.center import center
from distmnist.exchange.copies import shard_copies
from distmnist.exchange.rounds import shard_barrier, sync_replicas
from distmnist.nn import optimizers
from distmnist.tables import tables_apart
from distmnist.transport import gradients as gradients_lib
from distmnist.transport import sharding, strategy

if TYPE_CHECKING:
  from distmnist.cluster.cluster import Cluster
  from distmnist.cluster.stop_request import StopRequest


_SYNC_BARRIER = flags.DEFINE_enum(
  'sync_barrier',
  'step',
  ['step', 'shard'],
  'sync_sgd: what workers wait for. step: until all gradients are in and '
  'applied, then they pull. shard: each shard is applied, and pulled, as soon '
  'as its own gradients are in, while others are still pushed; variables are '
  'then cut into shards of at most 1 MiB (--max_shard_mib). The result is the '
  'same; shard takes at most one gradient per worker in each update.',
)

_WORKER_LEARNING_RATES = flags.DEFINE_list(
  'worker_learning_rates',
  [],
  'sync_sgd: one learning rate per worker, such as 0.1,0.0001. Only with '
  '--optimizer=sgd; --learning_rate is then only their common unit.',
)


def make(cluster: Cluster) -> SyncSgd:
  """Returns the rule; raises cli.UsageError if flags do not fit."""
  num_replicas = strategy.replicas_to_aggregate_from_flags(cluster)
  barrier = _SYNC_BARRIER.value
  if barrier == 'shard' and num_replicas > cluster.num_workers:
    raise cli.UsageError(
      '--sync_barrier=shard takes at most one gradient a worker in each update,'
      f' not {num_replicas} of {cluster.num_workers} workers: give a smaller '
      '--replicas_to_aggregate, or take --sync_barrier=step'
    )
  factor = _factor_from_flags(cluster, num_replicas)
  part_bytes = sharding.max_bytes_from_flags(shard_copies.PART_BYTES)
  return SyncSgd(cluster, num_replicas, factor, barrier, part_bytes)


def _factor_from_flags(cluster: Cluster, num_replicas: int) -> float | None:
  """Returns the factor for this worker's gradients, a float or None.

  Args:
    num_replicas: the number of gradients per update.

  Raises:
    cli.UsageError: the rates do not fit the cluster or the optimizer.
  """
  words = _WORKER_LEARNING_RATES.value
  if not words:
    return None
  given, n = f'--worker_learning_rates={",".join(words)}', cluster.num_workers
  try:
    rates = [float(word) for word in words]
  except ValueError:
    rates = []
  if len(rates) != n or not all(0 <= rate < math.inf for rate in rates):
    raise cli.UsageError(
      f'{given}: expected {n} learning rates of 0 or more, one a worker'
    )
  optimizer, base = optimizers.base_rate_from_flags()
  if optimizer != 'sgd' or not base:
    raise cli.UsageError(
      f'{given} needs plain sgd and a --learning_rate above 0, not {optimizer} '
      f'at {base:g}: else no step is in proportion to the gradient'
    )
  if num_replicas != n:
    raise cli.UsageError(
      f'{given} needs one gradient a worker in each update: leave '
      '--replicas_to_aggregate alone'
    )
  if tables_apart.is_wanted():
    raise cli.UsageError(
      f'{given} does not go with --table_strategy, by which the gradients of '
      'tables are applied at --learning_rate: leave one of them out'
    )
  if optimizers.are_tables_different():
    raise cli.UsageError(
      f'{given} does not go with --table_optimizer or --table_learning_rate: '
      'leave one of them out'
    )
  return rates[cluster.task_index] / base * n


class SyncSgd(strategy.Strategy):
  """One update of the center for every R gradients."""

  max_staleness = 0
  waits_for_all = takes_tables = True

  def __init__(
    self,
    cluster: Cluster,
    replicas_to_aggregate: int,
    gradient_factor: float | None = None,
    barrier: str = 'step',
    part_bytes: int | None = shard_copies.PART_BYTES,
  ) -> None:
    """
    Args:
      replicas_to_aggregate: R.
      gradient_factor: n lr_i / base, or None for 1.
      barrier: as --sync_barrier.
      part_bytes: see shard_copies.ShardCopies.
    """
    super().__init__(cluster)
    self.batches_per_update = replicas_to_aggregate
    self.is_lock_step = replicas_to_aggregate == cluster.num_workers
    self._gradient_factor = gradient_factor
    if gradient_factor is not None:
      self.needs_sgd = '--worker_learning_rates'
    if barrier == 'shard':
      self.overlaps_exchange = True
      self.refuses_tables_with = '--sync_barrier=shard'
      self.max_shard_bytes = part_bytes
    # Either of two barriers, each with the center that it pushes to.
    self._barrier: Any
    self._center: center.Center
    if barrier == 'shard' and cluster.num_ps:
      self._center = shard_copies.ShardCopies(cluster, part_bytes)
      self._barrier = shard_barrier.ShardBarrier
    else:  # Without a ps there is nothing to pull.
      self._center = center.Center(cluster)
      self._barrier = sync_replicas.SyncReplicas

  def scope(self) -> contextlib.AbstractContextManager[None]:
    return self._center.scope()

  def minimize(
    self,
    loss: tf.Tensor,
    make_optimizer: strategy.MakeOptimizer,
    global_step: tf.Variable,
  ) -> strategy.Update:
    with tf.name_scope('sync_sgd'):
      self._replicas = self._barrier(
        self.cluster, make_optimizer(), self.batches_per_update, global_step
      )
      gradients = self._center.compute_gradients(self._replicas.optimizer, loss)
      if self._gradient_factor is not None:
        gradients = [gradient * self._gradient_factor for gradient in gradients]
      weight = self._batch_weight if self.batches_per_update > 1 else None
      if weight is not None:
        gradients = gradients_lib.weigh(gradients, weight)
      new_step, staleness = self._replicas.push_and_wait(
        self._center, gradients, self.mark_done, weight
      )
      return strategy.Update(new_step, staleness, *self._center.count_bytes())

  def hooks(self, stop: StopRequest) -> list[tf.train.SessionRunHook]:
    return [self._replicas.hook(stop)]
