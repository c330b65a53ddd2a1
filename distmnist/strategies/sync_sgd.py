"""Synchronous SGD with backup workers, through SyncReplicasOptimizer.

Chen et al. 2016, arXiv 1604.00981. Each update takes in the first R gradients
of its step; what comes later is dropped:

  x~ <- Opt(x~, (1/R) sum_{j=1..R} g^j(x~))

R is replicas_to_aggregate and N = total_num_replicas the workers. R = N (the
default) is lock-step: one gradient a worker and update. R < N leaves N - R
backup workers, whose late gradients are dropped. R > N: a worker gives
several batches to one update.

With --worker_learning_rates (after tmulc18's synchronous SGD with different
rates; plain SGD, R = N) worker i's gradient counts as g^i n lr_i / base, base
being the optimizer's rate, so that the mean becomes

  x~ <- x~ - sum_i lr_i g^i(x~)

Variables, slots, gradient accumulators and the token queue live on the ps. A
worker pushes its gradients and waits for a token; a thread of the chief takes
R gradients, applies their mean and hands out the tokens of the next step. So
with R = N everybody waits for a worker that died, until it is back.
"""

import functools
import math

import tensorflow.compat.v1 as tf
from absl import flags

from distmnist import center, cli, optimizers, rounds, strategy

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
  given = f'--worker_learning_rates={",".join(words)}'
  num_workers = cluster.num_workers
  try:
    rates = [float(word) for word in words]
  except ValueError:
    rates = []
  if len(rates) != num_workers or not all(0 <= r < math.inf for r in rates):
    raise cli.UsageError(
      f'{given}: expected {num_workers} learning rates of 0 or more, one a '
      'worker'
    )
  optimizer, base = optimizers.base_rate_from_flags()
  if optimizer != 'sgd' or not base:
    raise cli.UsageError(
      f'{given} needs --optimizer=sgd and a --learning_rate above 0: other '
      'optimizers do not step in proportion to the gradient'
    )
  if strategy.replicas_to_aggregate_from_flags(cluster) != num_workers:
    raise cli.UsageError(
      f'{given} needs one gradient a worker in each update: leave '
      '--replicas_to_aggregate alone'
    )
  return rates[cluster.task_index] / base * num_workers


class SyncSgd(strategy.Strategy):
  """One update of the center for every R gradients."""

  max_staleness = 0
  waits_for_all = True

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
      token = self._make_token(global_step)
      own_token = token.value()
      self._optimizer = tf.train.SyncReplicasOptimizer(
        make_optimizer(), self.batches_per_update, self.cluster.num_workers
      )
      gradients = self._center.compute_gradients(self._optimizer, loss)
      if self._gradient_factor is not None:
        gradients = [gradient * self._gradient_factor for gradient in gradients]
      self.bytes_pulled = self.bytes_pushed = self._center.num_bytes
      pairs = self._center.to_shards(gradients)
      with tf.variable_creator_scope(
        functools.partial(_make_unless_local, token)
      ):
        self._optimizer.apply_gradients(pairs, global_step)
      return self._use_our_tokens(pairs, token, own_token, global_step)

  def _make_token(self, global_step):
    """Returns a variable: the global_step of this worker's last token.

    The optimizer has one on the worker. Beside the global_step a token need
    not travel, and is not waited for where steps follow each other in one run.
    It is read once in a step, before all else.
    """
    name = f'token_of_worker_{self.cluster.task_index}'
    with tf.device(global_step.device):
      return tf.Variable(
        global_step.read_value(),
        trainable=False,
        collections=[tf.GraphKeys.LOCAL_VARIABLES],
        caching_device=global_step.device,
        name=name,
      )

  def _use_our_tokens(self, pairs, token, own_token, global_step):
    """Has this worker give, and wait, as in every other round.

    The optimizer has one queue for all, from which a quick worker would take
    the token of one that died in its wait, and gives with no word on whether
    the gradient was in time.

    Args:
      pairs: list of (gradient on its ps, shard).
      token: int64 variable, which is given the next one.
      own_token: int64 scalar tensor, its value at the start of the step.
      global_step: int64 scalar variable.

    Returns:
      The train_op: the global_step of the new token.
    """
    accumulators = [(self._find_accumulator(v), v.device) for _, v in pairs]
    self._round = rounds.Round(
      self.cluster, self.batches_per_update, global_step, accumulators, token
    )
    runner = self._optimizer.get_chief_queue_runner()
    _, its_tokens = runner.enqueue_ops[0].inputs
    self._round.end_update([its_tokens])  # They come after the update.
    gifts = [gradient for gradient, _ in pairs]
    new_step, self.staleness = self._round.give_and_wait(
      gifts, own_token, self.mark_done
    )
    return new_step

  def _find_accumulator(self, variable):
    """Returns the accumulator that the optimizer has made for a variable."""
    with tf.device(variable.device):
      return tf.ConditionalAccumulator(
        variable.dtype.base_dtype,
        variable.shape,
        shared_name=f'{variable.name}/grad_accum',
      )

  def hooks(self, stop):
    return [self._round.hook(stop)]


def _make_unless_local(instead, create, **kwargs):
  """A variable creator that gives `instead` for a local variable."""
  is_local = tf.GraphKeys.LOCAL_VARIABLES in (kwargs['collections'] or ())
  return instead if is_local else create(**kwargs)
