"""Blockwise model-update filtering: averaged models with block momentum.

Chen and Huo 2016, "Scalable training of deep learning machines by incremental
block training with intra-block parallel optimization and blockwise
model-update filtering" (ICASSP); second source: fairseq's optim/bmuf.py (CNTK's
BlockMomentumSGD.h has zeta (1 - mu) in place of zeta). Each worker trains T
steps on its own copy, x^i <- LocalOpt(x^i, g^i(x^i)); then, in lock-step:

  G = (1/n) sum_i x^i - x~ = (1/n) sum_i (x^i - x^i as pulled)
  D <- mu D + zeta G;  x~ <- x~ + D;  x^i <- x~

x~ is the center, T the communication period, mu the block momentum (1 - 1/n
by default, which gives each worker's work its full weight), zeta the block
learning rate. This is the paper's classical block momentum; mu = 0, zeta = 1
is plain model averaging.

A worker sends the change of x^i, not x^i: a --wire_dtype of 16 bits then rounds
the change and not the weights, whose last bit may be larger than the change.

The center, D and the accumulators live on the ps; x^i, its values as pulled and
its slots on the worker. After T steps every worker waits for all the others,
and so for one that died, until it is back.
"""

import tensorflow.compat.v1 as tf
from absl import flags

from distmnist.exchange.copies import local_copies, periodic_exchange
from distmnist.exchange.rounds import sync_round
from distmnist.transport import nonfinite, strategy, sums

_BLOCK_MOMENTUM = flags.DEFINE_float(
  'block_momentum',
  None,
  'bmuf: mu, the momentum of the center; by default 1 - 1/workers.',
  lower_bound=0,
  upper_bound=1,
)
_BLOCK_LEARNING_RATE = flags.DEFINE_float(
  'block_learning_rate',
  1,
  'bmuf: zeta, the weight of the mean change of a block of steps.',
  lower_bound=0,
)


def make(cluster):
  momentum = _BLOCK_MOMENTUM.value
  if momentum is None:
    momentum = 1 - 1 / cluster.num_workers
  return Bmuf(
    cluster,
    strategy.communication_period_from_flags(10),
    momentum,
    _BLOCK_LEARNING_RATE.value,
  )


class Bmuf(strategy.Strategy):
  """T local steps per worker, then the filtered mean of all copies."""

  has_local_steps = True
  has_center_optimizer = False
  max_staleness = 0
  waits_for_all = True
  is_lock_step = True

  def __init__(self, cluster, communication_period, momentum, learning_rate):
    super().__init__(cluster)
    self.pull_period = self.push_period = communication_period
    self._momentum = momentum
    self._learning_rate = learning_rate
    self.batches_per_update = communication_period * cluster.num_workers
    self._copies = local_copies.LocalCopies(cluster)

  def scope(self):
    return self._copies.scope()

  def minimize(self, loss, make_optimizer, global_step):
    copies, num_workers = self._copies, self.cluster.num_workers
    with tf.name_scope('bmuf'):
      optimizer = make_optimizer(is_local=True)
      gradients = copies.compute_gradients(optimizer, loss)
      self._round = sync_round.make_round(
        self.cluster, num_workers, global_step, copies
      )
      self._round.build_update(self._filter)
      self._as_pulled = copies.make_kept('as_pulled')
      step = copies.count_local_step([copies.local_step(optimizer, gradients)])

      known_step = copies.make_counter(global_step.read_value(), 'known_step')

      def exchange():
        pairs = copies.to_shards(copies.read_changes(self._as_pulled))
        new_step, staleness = self._round.push_and_wait(pairs)
        with tf.control_dependencies([new_step]):
          done = copies.pull(keep=self._as_pulled)
        with tf.control_dependencies([done]):
          return tf.identity(new_step), tf.identity(staleness)

      return periodic_exchange.build_update(
        copies, self.pull_period, step, exchange, known_step
      )

  def _filter(self, means):
    """Returns the op that updates D and x~; means is G, a list like shards."""
    deltas = self._copies.make_zeros_on_ps('block_delta', are_sums=True)
    updates, shards = [], self._copies.shards
    for mean, shard, delta in zip(means, shards, deltas, strict=True):
      with tf.device(shard.device):
        moved = self._momentum * delta + self._learning_rate * sums.widen(mean)
        change = delta.assign(moved)
        if change.dtype.base_dtype != shard.dtype.base_dtype:
          change = tf.cast(change, shard.dtype.base_dtype)
          change = nonfinite.check_mean(change, self.cluster.task_index)
        updates.append(shard.assign_add(change, read_value=False))
    return tf.group(*updates)

  def hooks(self, stop):
    return [self._round.hook(stop, self._copies.pull(self._as_pulled))]
