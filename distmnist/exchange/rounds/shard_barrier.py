"""Synchronous SGD in which each shard has its own barrier.

As soon as R gradients of a unit (units.py) are in, the chief's thread
applies their mean and each worker pulls the unit, while other gradients are
still coming in. One session.run of the chief covers all units of a round; none
of them waits for another, unless the optimizer takes norms (lars, lamb). The
result is bit for bit that of sync_replicas.py: each unit takes in the gradients
of the same R workers (round_entry.py), and no worker computes its next gradient
before it has all units. Numbers that an optimizer keeps once for all variables,
such as the powers of Adam's betas, are updated once all units are, before the
token of the round.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TYPE_CHECKING

import tensorflow.compat.v1 as tf

from distmnist.exchange.rounds import contributions, sync_round
from distmnist.transport import nonfinite, sums

if TYPE_CHECKING:
  from distmnist.cluster.cluster import Cluster
  from distmnist.cluster.stop_request import StopRequest
  from distmnist.exchange.copies.shard_copies import ShardCopies
  from distmnist.transport.strategy import MarkDone


# How many units of a ps a worker may have on their way beyond the last one that
# is updated. Were all sent at once, each would be whole only at the end, and no
# pull could begin. And what a fast worker sends too early takes its share of
# the link from the slower ones, whose gradients all wait for.
_UNITS_AHEAD = 6


class ShardBarrier:
  """The optimizer of a worker and its round, like sync_replicas.SyncReplicas.

  Attributes:
    optimizer: applies the mean.
  """

  def __init__(
    self,
    cluster: Cluster,
    optimizer: tf.train.Optimizer,
    replicas_to_aggregate: int,
    global_step: tf.Variable,
  ) -> None:
    """
    Args:
      optimizer: optimizer.Optimizer of nn/optimizer.py.
      replicas_to_aggregate: R, at most the number of workers.
      global_step: int64 scalar variable.
    """
    self.optimizer = optimizer
    self._cluster = cluster
    self._num_contributions = replicas_to_aggregate
    self._global_step = global_step
    self._token = sync_round.make_token(cluster, global_step)
    # Read once per step, before the gradients are computed.
    self._own_token = self._token.value()

  def push_and_wait(
    self,
    copies: ShardCopies,
    gradients: Sequence[tf.Tensor],
    mark_done: MarkDone,
    weight: tf.Tensor | None = None,
  ) -> tuple[tf.Tensor, tf.Tensor]:
    """Pushes gradients, and pulls the new center.

    Args:
      gradients: like `copies.views`.
      mark_done: see Strategy.mark_done.
      weight: float32 scalar tensor, by which the gradients are weighed, or
        None; see Strategy.weigh_by.

    Returns:
      (new_step, staleness): int64 scalar tensors, see
      sync_round.Round.push_and_wait; known once the copies have the new center.
    """
    pairs = copies.to_shards(gradients)
    shards = [shard for _, shard in pairs]
    units = copies.find_units()
    accumulators, parts = contributions.make_accumulators(shards), units
    if weight is not None:  # Each unit is divided by what came with it.
      of_weight, pushed = contributions.make_weights(
        weight, [shards[unit[0]].device for unit in units]
      )
      parts = [[*unit, len(shards) + i] for i, unit in enumerate(units)]
      accumulators += of_weight
      pairs += pushed
    self._round = sync_round.Round(
      self._cluster,
      self._num_contributions,
      self._global_step,
      accumulators,
      self._token,
      parts,
      by_unit=True,
    )
    self._build_update(shards, units)
    own_token = self._own_token
    if not self._round.entry.is_lock_step:
      own_token = self._bring_once_computed(own_token, gradients)
    told = self._round.push_and_wait(pairs, own_token, mark_done)
    updated = self._wait_for_units(copies, shards, units)
    self._pull = copies.pull()
    new_step, staleness = copies.bring(
      told, [copies.pull_after(updated), *updated]
    )
    return new_step, staleness

  def _wait_for_units(
    self,
    copies: ShardCopies,
    shards: Sequence[tf.Variable],
    units: Sequence[Sequence[int]],
  ) -> list[tf.Operation]:
    """Returns ops like `shards`, each after the update of its unit."""
    updated, before = [None] * len(shards), {}
    # A backward pass makes the last gradients first.
    for number, unit in reversed(list(enumerate(units))):
      pushed = [self._round.pushed[i] for i in unit]
      is_past = self._round.tokens.wait(number, pushed)
      earlier = before.setdefault(shards[unit[0]].device, [])
      # What waits for all norms would wait for what is held back here.
      if len(earlier) >= _UNITS_AHEAD and not self.optimizer.takes_all_norms:
        copies.hold(unit, earlier[-_UNITS_AHEAD])
      earlier.append(is_past)
      for i in unit:
        updated[i] = is_past
    return updated

  def _bring_once_computed(
    self, own_token: tf.Tensor, gradients: Sequence[tf.Tensor]
  ) -> tf.Tensor:
    """Returns the token, on its ps, once the worker may ask for a place."""
    with tf.device(self._cluster.compute_device):
      computed = tf.group(*gradients)
    with (
      tf.device(self._global_step.device),
      tf.control_dependencies([computed]),
    ):
      return tf.identity(own_token)

  def _build_update(
    self, shards: Sequence[tf.Variable], units: Sequence[Sequence[int]]
  ) -> None:
    """Builds the chief's part of a round."""
    the_round, device = self._round, self._global_step.device
    tokens, end = the_round.tokens, the_round.entry.read_token() + 1
    means, is_due = [None] * len(shards), {}
    for number, unit in enumerate(units):
      place, weight = shards[unit[0]].device, None
      with tf.device(place):
        for of_weight in the_round.parts[number][len(unit) :]:
          accumulator, _ = the_round.accumulators[of_weight]
          weight = accumulator.take_grad(the_round.num_contributions)
        for i in unit:
          accumulator, _ = the_round.accumulators[i]
          mean = accumulator.take_grad(the_round.num_contributions)
          if weight is not None:
            mean = sums.divide(mean, weight)
          means[i] = nonfinite.check_mean(mean, self._cluster.task_index)
      with tf.control_dependencies([means[i] for i in unit]):
        due = tokens.units.begin(number, end)
      is_due |= {shards[i].ref(): due for i in unit}
    ends = {}
    with tf.device(device):
      all_applied = self.optimizer.apply_gradients(
        list(zip(means, shards, strict=True)),
        apply_one=functools.partial(_apply_if_due, is_due, ends),
      )
    handed = [
      tokens.hand_out(number, end, [ends[shards[i].ref()] for i in u])
      for number, u in enumerate(units)
    ]
    with tf.device(device):
      applied = the_round.state_means.build_update([all_applied, *handed])
      with tf.control_dependencies(applied):
        count = self._global_step.assign_add(1, read_value=False)
    the_round.end_update([count])

  def hook(self, stop: StopRequest) -> tf.train.SessionRunHook:
    """Returns the hook of the round; `stop` is a stop_request.StopRequest."""
    return self._round.hook(stop, self._pull)


def _apply_if_due(
  is_due: Mapping[Hashable, tf.Tensor],
  ends: dict[Hashable, tf.Operation],
  apply: Callable[[tf.Tensor, tf.Variable], tf.Operation],
  gradient: tf.Tensor,
  variable: tf.Variable,
) -> tf.Operation:
  """Returns the op that ends the update of a variable, if it is due.

  Args:
    is_due: variable.ref() -> bool scalar tensor.
    ends: variable.ref() -> op that ends its update, which takes it in.
    apply, gradient, variable: see nn/optimizer.py, `apply_one`.
  """
  key = variable.ref()
  with tf.device(variable.device):
    # Without a tf.cond, which takes many ops. What is not due is dead to
    # TensorFlow, and so is all that is computed from it, up to the merge.
    due = tf.raw_ops.Switch(data=gradient, pred=is_due[key]).output_true
    with tf.control_dependencies([apply(due, variable)]):
      done = tf.shape(due)
    shape = tf.raw_ops.Switch(data=tf.shape(gradient), pred=is_due[key])
    merged = tf.raw_ops.Merge(inputs=[done, shape.output_false])
  ends[key] = merged.output.op
  return ends[key]
