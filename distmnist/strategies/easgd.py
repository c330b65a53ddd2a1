"""Elastic averaging SGD: EASGD, AEASGD and AEAMSGD.

Zhang, Choromanska, LeCun 2015, arXiv 1412.6651. A spring of strength alpha
(moving_rate) ties each worker's x^i to the center x~. Asynchronous (AEASGD,
algorithm 1), at its step t from 1:

  x = x^i
  if T divides t:  d = alpha (x - x~);  x^i -= d;  x~ += d
  x^i -= eta g^i(x)

With momentum delta (easgd_momentum; AEAMSGD, algorithm 2) the last line is
Nesterov's: v <- delta v - eta g^i(x + delta v);  x^i += v. The look-ahead is
x + delta v, as in the authors' sixin-zh/mpiT; dist-keras has its sign wrong.
Synchronous (easgd_sync; equations 5 and 6): all n workers take d^i from the
same center, and x~ += sum_i d^i once all have arrived; n alpha <= 1.

The paper has T = 10 (asynchronous) or 1, and t from 0: its first exchange is
between equals. global_step counts the moves of x~.

The center lives on the ps; x^i (as x^i + delta v, where g is taken), v and
slots on the worker. Asynchronous: no worker waits; one that dies loses its x^i
and pulls the center on its return. Synchronous: every worker waits for all the
others at each exchange, and so for one that died, until it is back.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

import tensorflow.compat.v1 as tf
from absl import flags

from distmnist.common import cli
from distmnist.exchange.copies import nesterov_copies, periodic_exchange
from distmnist.exchange.rounds import sync_round
from distmnist.nn import optimizers
from distmnist.transport import nonfinite, strategy, variable_lists

if TYPE_CHECKING:
  from distmnist.cluster.cluster import Cluster
  from distmnist.cluster.stop_request import StopRequest


_MOVING_RATE = flags.DEFINE_float(
  'moving_rate',
  None,
  'easgd: alpha, the fraction of the gap between them by which worker and '
  'center each move at an exchange; by default 0.9 / workers.',
  lower_bound=0,
  upper_bound=1,
)
_EASGD_SYNC = flags.DEFINE_bool(
  'easgd_sync', False, 'easgd: all workers meet at each exchange.'
)
_EASGD_MOMENTUM = flags.DEFINE_float(
  'easgd_momentum',
  0,
  "easgd: delta of Nesterov's momentum, 0.9 to 0.99; needs sgd as optimizer.",
  lower_bound=0,
  upper_bound=1,
)


def make(cluster: Cluster) -> Easgd:
  is_sync, n = _EASGD_SYNC.value, cluster.num_workers
  moving_rate = _MOVING_RATE.value
  if moving_rate is None:
    moving_rate = 0.9 / n
  if is_sync and n * moving_rate > 1:
    raise cli.UsageError(
      f'--moving_rate={moving_rate:g}: {n} synchronous workers need at most '
      f'1 / {n}, or the center overshoots'
    )
  name = optimizers.local_name_from_flags()
  if _EASGD_MOMENTUM.value and name != 'sgd':
    raise cli.UsageError(
      f'--easgd_momentum is a momentum of its own: it needs sgd as the local '
      f'optimizer, not {name}'
    )
  period = strategy.communication_period_from_flags(1 if is_sync else 10)
  return Easgd(cluster, moving_rate, period, _EASGD_MOMENTUM.value, is_sync)


class Easgd(strategy.Strategy):
  """Copies that explore, tied to the center by springs."""

  has_local_steps = True
  has_center_optimizer = False
  needs_warmup = True

  def __init__(
    self,
    cluster: Cluster,
    moving_rate: float,
    period: int,
    momentum: float = 0,
    is_sync: bool = False,
  ) -> None:
    super().__init__(cluster)
    self._moving_rate = moving_rate
    self.pull_period = self.push_period = period
    self._is_sync = self.is_lock_step = self.waits_for_all = is_sync
    self.needs_warmup = not is_sync
    # Synchronous workers wait for each push, so none is stale.
    self.max_staleness = 0 if is_sync else None
    self.batches_per_update = period * (cluster.num_workers if is_sync else 1)
    if momentum:
      self.needs_sgd = '--easgd_momentum'
    self._copies = nesterov_copies.NesterovCopies(cluster, momentum)
    self._round: sync_round.Round | None = None

  def scope(self) -> contextlib.AbstractContextManager[None]:
    return self._copies.scope()

  def minimize(
    self,
    loss: tf.Tensor,
    make_optimizer: strategy.MakeOptimizer,
    global_step: tf.Variable,
  ) -> strategy.Update:
    copies, alpha = self._copies, self._moving_rate
    with tf.name_scope('easgd'):
      optimizer = make_optimizer(is_local=True)
      gradients, positions, step = copies.begin_step(optimizer, loss)
      if self._is_sync:
        self._round = sync_round.make_round(
          self.cluster, self.cluster.num_workers, global_step, copies
        )
        self._round.build_update(self._add_sums)
      known_step = copies.make_counter(global_step.read_value(), 'known_step')

      def exchange() -> tuple[tf.Tensor, tf.Tensor]:
        read_step = strategy.read_after(global_step, [])
        pairs = zip(positions, copies.read_center(), strict=True)
        # Both ends use the same d, even if it is rounded on the wire.
        changes = copies.round_as_sent([alpha * (x - y) for x, y in pairs])
        moved = copies.add([-d for d in changes])
        parts, shards = zip(*copies.to_shards(changes), strict=True)
        if self._round:
          pushed = []
          for part, shard in zip(parts, shards, strict=True):
            # On the shard's ps, where the change has arrived.
            with tf.control_dependencies([moved]), tf.device(shard.device):
              pushed.append((tf.identity(part), shard))
          return self._round.push_and_wait(pushed, mark_done=self.mark_done)
        added = variable_lists.add_all(shards, parts)
        return strategy.count_update(
          global_step, [moved, added], read_step, self.mark_done
        )

      update = periodic_exchange.build_update(
        copies, self.pull_period, step, exchange, known_step
      )
      # d comes first: both it and g are taken at the old x.
      with tf.control_dependencies([update.train_op, update.staleness]):
        moved = copies.end_step(optimizer, gradients)
      with tf.control_dependencies([moved]):
        return update._replace(train_op=tf.identity(update.train_op))

  def _add_sums(self, means: Sequence[tf.Tensor]) -> tf.Operation:
    """Returns the op x~ += sum_i d^i; the means of d^i are like the shards."""
    n, updates = self.cluster.num_workers, []
    for mean, shard in zip(means, self._copies.shards, strict=True):
      with tf.device(shard.device):
        change = nonfinite.check_mean(n * mean, self.cluster.task_index)
        updates.append(shard.assign_add(change, read_value=False))
    return tf.group(*updates)

  def hooks(self, stop: StopRequest) -> list[tf.train.SessionRunHook]:
    if self._round is None:
      return []
    return [self._round.hook(stop, self._copies.pull())]
