"""Synchronous SGD with backup workers, through SyncReplicasOptimizer.

Chen et al. 2016, arXiv 1604.00981. Each update takes in the first R gradients
of its step; what comes later is dropped:

  x~ <- Opt(x~, (1/R) sum_{j=1..R} g^j(x~))

R is replicas_to_aggregate and N = total_num_replicas the workers. R = N (the
default) is lock-step: one gradient a worker and update. R < N leaves N - R
backup workers, whose late gradients are dropped. R > N: a worker contributes
several batches to one update.

With --worker_learning_rates (after tmulc18's synchronous SGD with different
rates; plain SGD, R = N) worker i's gradient counts as g^i n lr_i / base, base
being the optimizer's rate, so that the mean becomes

  x~ <- x~ - sum_i lr_i g^i(x~)

Variables, slots, gradient accumulators and the token queue live on the ps. A
worker pushes its gradients and waits for a token, which a thread of the chief
hands out after each update. With R = N all wait for one that died to return.
"""

import math

import tensorflow.compat.v1 as tf
from absl import flags

from distmnist.common import cli
from distmnist.exchange import center, strategy, sync_replicas
from distmnist.nn import optimizers

_WORKER_LEARNING_RATES = flags.DEFINE_list(
  'worker_learning_rates',
  [],
  'sync_sgd: a learning rate a worker, such as 0.1,0.0001. With '
  '--optimizer=sgd alone; --learning_rate is then only their common unit.',
)


def make(cluster):
  words = _WORKER_LEARNING_RATES.value
  return SyncSgd(
    cluster,
    strategy.replicas_to_aggregate_from_flags(cluster),
    compute_gradient_factor(cluster, words) if words else None,
  )


def compute_gradient_factor(cluster, words):
  """Returns what this worker's gradients are multiplied by, a float.

  Args:
    cluster: cluster.Cluster.
    words: list of str, lr_i of each worker.

  Raises:
    cli.UsageError: they do not fit the cluster or the optimizer.
  """
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
  if strategy.replicas_to_aggregate_from_flags(cluster) != n:
    raise cli.UsageError(
      f'{given} needs one gradient a worker in each update: leave '
      '--replicas_to_aggregate alone'
    )
  return rates[cluster.task_index] / base * n


class SyncSgd(strategy.Strategy):
  """One update of the center for every R gradients."""

  max_staleness = 0
  waits_for_all = True
  takes_tables = True

  def __init__(self, cluster, replicas_to_aggregate, gradient_factor=None):
    """
    Args:
      cluster: cluster.Cluster.
      replicas_to_aggregate: int, R.
      gradient_factor: float, n lr_i / base, or None for 1.
    """
    super().__init__(cluster)
    self.batches_per_update = replicas_to_aggregate
    self.is_lock_step = replicas_to_aggregate == cluster.num_workers
    self._gradient_factor = gradient_factor
    self._center = center.Center(cluster)

  def scope(self):
    return self._center.scope()

  def minimize(self, loss, make_optimizer, global_step):
    with tf.name_scope('sync_sgd'):
      self._replicas = sync_replicas.SyncReplicas(
        self.cluster, make_optimizer(), self.batches_per_update, global_step
      )
      gradients = self._center.compute_gradients(self._replicas.optimizer, loss)
      if self._gradient_factor is not None:
        gradients = [gradient * self._gradient_factor for gradient in gradients]
      new_step, staleness = self._replicas.push_and_wait(
        self._center.to_shards(gradients), self.mark_done
      )
      return strategy.Update(new_step, staleness, *self._center.count_bytes())

  def hooks(self, stop):
    return [self._replicas.hook(stop)]
