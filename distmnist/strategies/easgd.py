"""Elastic averaging SGD: EASGD, AEASGD and AEAMSGD.

Zhang, Choromanska, LeCun 2015, "Deep learning with Elastic Averaging SGD",
arXiv 1412.6651. A spring of strength alpha (moving_rate) ties each worker's
x^i to the center x~. Asynchronous (AEASGD, algorithm 1), at its step t from 1:

  x = x^i
  if T divides t:  d = alpha (x - x~);  x^i -= d;  x~ += d
  x^i -= eta g^i(x)

With momentum delta (easgd_momentum; AEAMSGD, algorithm 2) the last line is
Nesterov's: v <- delta v - eta g^i(x + delta v);  x^i += v. The look-ahead is
x + delta v, as in the authors' sixin-zh/mpiT; dist-keras has its sign wrong.

Synchronous (easgd_sync; equations 5 and 6): all n workers take d^i from the
same center, and x~ += sum_i d^i once all have arrived; n alpha <= 1.

Without momentum any local optimizer may take the place of - eta g. The paper
has alpha = 0.9 / n and T = 10 (asynchronous), T = 1 (synchronous). global_step
counts the moves of x~: exchanges, or rounds of all where synchronous. The
paper's t is from 0, so that it begins with an exchange of two equals, which
moves nothing; without it T batches are one global step.

The center lives on the ps; x^i (as x^i + delta v, where g is taken), v and
slots on the worker. Asynchronous: nobody waits; a worker that dies takes its
x^i with it, pulls the center at its return, and the others go on. Synchronous:
all wait for all at each exchange, so for one that died until it is back.
"""

import tensorflow.compat.v1 as tf
from absl import flags

from distmnist.common import cli
from distmnist.exchange import (
  local_copies,
  strategy,
  sync_round,
  variable_lists,
)
from distmnist.nn import optimizers

_MOVING_RATE = flags.DEFINE_float(
  'moving_rate',
  None,
  'easgd: alpha, the part of the way to the center and back; by default '
  '0.9 / workers.',
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


def make(cluster):
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
  """Copies that explore, on springs to the center."""

  has_local_steps = True
  is_rehearsed = True

  def __init__(
    self, cluster, moving_rate, communication_period, momentum=0, is_sync=False
  ):
    super().__init__(cluster)
    self._moving_rate = moving_rate
    self.pull_period = self.push_period = communication_period
    self._momentum = momentum
    self._is_sync = is_sync
    self.is_rehearsed = not is_sync  # In lock-step each waits for all.
    self.max_staleness = 0 if is_sync else None
    self.waits_for_all = is_sync
    self.is_lock_step = is_sync
    num_givers = cluster.num_workers if is_sync else 1
    self.batches_per_update = communication_period * num_givers
    self._round = None
    self._copies = local_copies.LocalCopies(cluster)

  def scope(self):
    return self._copies.scope()

  def minimize(self, loss, make_optimizer, global_step):
    copies = self._copies
    with tf.name_scope('easgd'):
      if self._is_sync:
        self._build_round(global_step)
      self._velocities = []
      if self._momentum:
        self._velocities = copies.make_zeros('velocity')
      optimizer = make_optimizer(is_local=True)
      gradients = copies.compute_gradients(optimizer, loss)
      # The copies hold x + delta v, which the model has read for g.
      with tf.control_dependencies(gradients):
        positions = self._read_positions()
      step = copies.count_local_step([*gradients, *positions])

      def exchange():
        if self._is_sync:
          return self._exchange_in_round(positions)
        return self._exchange(positions, global_step)

      known_step = copies.make_counter(global_step.read_value(), 'known_step')
      new_step, staleness, is_due = local_copies.every(
        self.pull_period, step, exchange, known_step
      )
      num_bytes = copies.count_bytes_if(is_due)
      # d comes first: both it and g are taken at the old x.
      with tf.control_dependencies([new_step, staleness]):
        moved = self._step(optimizer, [tf.identity(g) for g in gradients])
      with tf.control_dependencies([moved]):
        train_op = tf.identity(new_step)
      return strategy.Update(train_op, staleness, num_bytes, num_bytes)

  def _read_positions(self):
    """Returns x of x + delta v, a list of tensors."""
    values = self._copies.read()
    if not self._momentum:
      return values
    return [
      value - self._momentum * velocity.read_value()
      for value, velocity in zip(values, self._velocities, strict=True)
    ]

  def _pull_apart(self, positions):
    """Returns the list of d, and the op that takes d off the copies."""
    center = self._copies.read_center()
    # The same d here and there, also where it is rounded on its way.
    changes = self._copies.round_as_sent(
      [
        self._moving_rate * (position - value)
        for position, value in zip(positions, center, strict=True)
      ]
    )
    own = variable_lists.add_all(self._copies.variables, [-d for d in changes])
    return changes, own

  def _exchange(self, positions, global_step):
    read_step = strategy.read_after(global_step, [])
    changes, own = self._pull_apart(positions)
    pairs = self._copies.to_shards(changes)
    added = variable_lists.add_all(
      *zip(*((s, d) for d, s in pairs), strict=True)
    )
    return strategy.count_update(
      global_step, [own, added], read_step, self.mark_done
    )

  def _build_round(self, global_step):
    self._round = sync_round.make_round(
      self.cluster, self.cluster.num_workers, global_step, self._copies
    )
    self._round.build_update(self._add_sums)

  def _add_sums(self, means):
    """Returns the op x~ += sum d^i; means is a list like the shards."""
    updates = []
    for mean, shard in zip(means, self._copies.shards, strict=True):
      with tf.device(shard.device):
        change = self.cluster.num_workers * mean
        updates.append(shard.assign_add(change, read_value=False))
    return tf.group(*updates)

  def _exchange_in_round(self, positions):
    changes, own = self._pull_apart(positions)
    pairs = []
    for change, shard in self._copies.to_shards(changes):
      # On its ps, where it has arrived.
      with tf.control_dependencies([own]), tf.device(shard.device):
        pairs.append((tf.identity(change), shard))
    return self._round.push_and_wait(pairs)

  def _step(self, optimizer, gradients):
    """Returns the op x^i -= eta g, or that of v and x^i with momentum."""
    if not self._momentum:
      return self._copies.local_step(optimizer, gradients)
    before = [v.read_value() for v in self._velocities]
    with tf.control_dependencies(before):
      shrunk = variable_lists.assign_all(
        self._velocities, [self._momentum * v for v in before]
      )
    with tf.control_dependencies([shrunk]), local_copies.local_variables():
      stepped = optimizer.apply_gradients(
        list(zip(gradients, self._velocities, strict=True))
      )
    # x + delta v of the new x = x + v': what the copies hold next.
    with tf.control_dependencies([stepped]):
      changes = [
        (1 + self._momentum) * v.read_value() - self._momentum * old
        for v, old in zip(self._velocities, before, strict=True)
      ]
    return variable_lists.add_all(self._copies.variables, changes)

  def hooks(self, stop):
    if not self._round:
      return []
    return [self._round.hook(stop, self._copies.pull())]
