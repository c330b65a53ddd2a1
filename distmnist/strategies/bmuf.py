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
is plain model averaging. Its Nesterov block momentum (--block_nesterov) starts
the next block where D will lead, and the center is there:

  D <- mu D + zeta G;  x~ <- x~ + zeta G + mu D;  x^i <- x~

With AdamW as LocalOpt that is DiLoCo (Douillard et al. 2023, arXiv 2311.08105,
algorithm 1), whose outer step is PyTorch's: v <- mu v + G; x~ <- x~ + zeta (G +
mu v). D is zeta v.

Asynchronous with --delayed_nesterov=N (Liu et al. 2024, arXiv 2401.09135,
algorithm 3 with c = 0): nobody waits. After T steps a worker pushes d = x^i -
(x^i as pulled), and under one lock

  B <- B + zeta d / N;  x~ <- x~ + zeta d / N
  in every N-th push:  D <- mu D + B;  x~ <- x~ + mu D;  B <- 0
  c += 1;  x^i <- x~

so that N pushes from one center are one update with --block_nesterov. c is
global_step: it counts updates in lock-step, and here pushes.

A worker sends the change of x^i, not x^i: a --wire_dtype of 16 bits then rounds
the change and not the weights, whose last bit may be larger than the change.

The center, D, B and the accumulators live on the ps; x^i, its values as pulled
and its slots on the worker, and no exchange resets the slots. In lock-step
every worker waits after T steps for all the others, and so for one that died,
until it is back. Asynchronous, it waits for the lock only while another's push
is applied; if one dies, its slots and up to T local steps are lost.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import tensorflow.compat.v1 as tf
from absl import flags

from distmnist.exchange import locked_center
from distmnist.exchange.copies import local_copies, periodic_exchange
from distmnist.exchange.rounds import sync_round
from distmnist.transport import nonfinite, strategy, sums

if TYPE_CHECKING:
  from distmnist.cluster.cluster import Cluster
  from distmnist.cluster.stop_request import StopRequest


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
_BLOCK_NESTEROV = flags.DEFINE_bool(
  'block_nesterov',
  False,
  "bmuf: Nesterov's block momentum; with --local_optimizer=adamw it is DiLoCo.",
)
_DELAYED_NESTEROV = flags.DEFINE_integer(
  'delayed_nesterov',
  0,
  "bmuf: N, asynchronous: a push counts 1/N, and every N-th moves Nesterov's "
  'momentum; 0 for lock-step.',
  lower_bound=0,
)

# Takes the changes of the copies; returns (new_step, staleness).
Push = Callable[[Sequence[tf.Tensor]], tuple[tf.Tensor, tf.Tensor]]


def make(cluster: Cluster) -> Bmuf:
  momentum = _BLOCK_MOMENTUM.value
  if momentum is None:
    momentum = 1 - 1 / cluster.num_workers
  return Bmuf(
    cluster,
    strategy.communication_period_from_flags(10),
    momentum,
    _BLOCK_LEARNING_RATE.value,
    _BLOCK_NESTEROV.value,
    _DELAYED_NESTEROV.value,
  )


class Bmuf(strategy.Strategy):
  """T local steps per worker, then the filtered mean of all copies."""

  has_local_steps = True
  has_center_optimizer = False
  max_staleness = 0
  waits_for_all = True
  is_lock_step = True

  def __init__(
    self,
    cluster: Cluster,
    communication_period: int,
    momentum: float,
    learning_rate: float,
    is_nesterov: bool = False,
    delay: int = 0,
  ) -> None:
    """
    Args:
      cluster, communication_period, momentum, learning_rate: this worker's, T,
        mu and zeta.
      is_nesterov: whether an update ends where D will lead.
      delay: N, the pushes from one move of D to the next, which is then
        Nesterov's; 0 for rounds of all workers.
    """
    super().__init__(cluster)
    self.pull_period = self.push_period = communication_period
    self.batches_per_update = communication_period
    if delay:
      self.is_lock_step = self.waits_for_all = False
      self.max_staleness, self.needs_warmup = None, True
    else:
      self.batches_per_update *= cluster.num_workers
    self._momentum = momentum
    self._learning_rate = learning_rate
    self._is_nesterov = is_nesterov
    self._delay = delay
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
    with tf.name_scope('bmuf'):
      optimizer = make_optimizer(is_local=True)
      gradients = copies.compute_gradients(optimizer, loss)
      self._as_pulled = copies.make_kept('as_pulled')
      prepare = self._prepare_alone if self._delay else self._prepare_round
      push, known_step = prepare(global_step)
      step = copies.count_local_step([copies.local_step(optimizer, gradients)])
      return periodic_exchange.build_update(
        copies,
        self.pull_period,
        step,
        lambda: push(copies.read_changes(self._as_pulled)),
        known_step,
      )

  def _prepare_round(
    self, global_step: tf.Variable
  ) -> tuple[Push, tf.Variable]:
    """Builds the rounds, in lock-step.

    Returns:
      (push, known_step), as `periodic_exchange.every` takes them: push takes
      the changes of the copies.
    """
    copies = self._copies
    self._round = sync_round.make_round(
      self.cluster, self.cluster.num_workers, global_step, copies
    )
    self._round.build_update(self._filter)
    known_step = copies.make_counter(global_step.read_value(), 'known_step')

    def push(changes: Sequence[tf.Tensor]) -> tuple[tf.Tensor, tf.Tensor]:
      pairs = copies.to_shards(changes)
      new_step, staleness = self._round.push_and_wait(pairs)
      with tf.control_dependencies([new_step]):
        done = copies.pull(keep=self._as_pulled)
      with tf.control_dependencies([done]):
        return tf.identity(new_step), tf.identity(staleness)

    return push, known_step

  def _filter(self, means: Sequence[tf.Tensor]) -> tf.Operation:
    """Returns the op that updates D and x~; means is G, a list like shards."""
    deltas = self._copies.make_zeros_on_ps('block_delta', are_sums=True)
    updates, shards = [], self._copies.shards
    for mean, shard, delta in zip(means, shards, deltas, strict=True):
      with tf.device(shard.device):
        new = self._learning_rate * sums.widen(mean)
        moved = delta.assign(self._momentum * delta + new)
        if self._is_nesterov:
          moved = new + self._momentum * moved
        updates.append(self._add(shard, moved))
    return tf.group(*updates)

  def _prepare_alone(
    self, global_step: tf.Variable
  ) -> tuple[Push, tf.Variable]:
    """Builds the lock under which each worker pushes, see `_prepare_round`."""
    self._center = locked_center.AtomicCenter(
      self._copies,
      global_step,
      keep_whole=self._as_pulled,
      mark_done=self.mark_done,
    )
    deltas = self._copies.make_zeros_on_ps('block_delta', are_sums=True)
    waiting = self._copies.make_zeros_on_ps('block_sum', are_sums=True)

    def apply(
      pairs: Sequence[tuple[tf.Tensor, tf.Variable]], staleness: tf.Tensor
    ) -> tf.Operation:
      del staleness
      with tf.device(global_step.device):
        is_nth = tf.equal((global_step.read_value() + 1) % self._delay, 0)
      updates = []
      for (change, shard), delta, total in zip(
        pairs, deltas, waiting, strict=True
      ):
        # Otherwise all changes would go through the ps with the lock.
        with tf.device(shard.device):
          updates += self._push_to_shard(change, shard, delta, total, is_nth)
      return tf.group(*updates)

    def push(changes: Sequence[tf.Tensor]) -> tuple[tf.Tensor, tf.Tensor]:
      return self._center.exchange(changes, apply)

    return push, self._center.pulled_step

  def _push_to_shard(
    self,
    change: tf.Tensor,
    shard: tf.Variable,
    delta: tf.Variable,
    total: tf.Variable,
    is_nth: tf.Tensor,
  ) -> list[tf.Operation]:
    """Returns the ops that apply d to a shard, its D and its B."""
    new = self._learning_rate / self._delay * sums.widen(change)
    before, new_total = delta.read_value(), total + new
    after = tf.where(is_nth, self._momentum * before + new_total, before)
    moved = tf.where(is_nth, new + self._momentum * after, new)
    # Nothing is written before all has been read, and B first: a worker that is
    # killed here has not counted its push, and the next one is the N-th again.
    # It then finds no B, and does not add the same one to D twice.
    with tf.control_dependencies([after, moved]):
      kept = tf.where(is_nth, tf.zeros_like(new_total), new_total)
      kept = total.assign(kept, read_value=False)
    with tf.control_dependencies([kept]):
      return [delta.assign(after, read_value=False), self._add(shard, moved)]

  def _add(self, shard: tf.Variable, change: tf.Tensor) -> tf.Operation:
    """Returns the op x~ <- x~ + change of a shard; change may be wider."""
    if change.dtype.base_dtype != shard.dtype.base_dtype:
      change = tf.cast(change, shard.dtype.base_dtype)
      change = nonfinite.check_mean(change, self.cluster.task_index)
    return shard.assign_add(change, read_value=False)

  def hooks(self, stop: StopRequest) -> list[tf.train.SessionRunHook]:
    if self._delay:
      return [self._center.hook()]
    return [self._round.hook(stop, self._copies.pull(self._as_pulled))]
