"""An exponential moving average of the center's weights, beside them.

Like tf.train.ExponentialMovingAverage with its num_updates (Polyak and Juditsky
1992, SIAM J. Control Optim. 30(4), for averages of the weights of a descent):

  d = min(decay, (1 + t) / (10 + t));  a <- a - (1 - d) (a - x~)

x~ is the center and t the global_step, both after an update; a starts at the
initial x~. No worker computes with a: it is for evaluation. Beside weights of
16 bits it is kept in 32 bits as well (transport/sums.py), and a is rounded.

In a round (exchange/rounds/sync_round.py) the chief's thread moves a once for
each update, before it hands out the tokens. Otherwise the worker that pushed
moves it after its push, outside any lock: another's push that lands in between
is already in x~, and its own move follows as well. A push that drop_stale or
ringmaster has thrown away moves a, too; an exchange of ad_psgd between two
workers does not. Without a ps each worker has its own a.
"""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow.compat.v1 as tf

from distmnist import graph_record
from distmnist.transport import sums, variable_lists

NAME = 'ExponentialMovingAverage'


class WeightAverages:
  """The averages of the default graph, and how a step moves them.

  Attributes:
    variables: one beside each shard; in a checkpoint each has the name of its
      weight, followed by NAME.
    is_moved: whether an update of the center already moves them.
  """

  def __init__(
    self, shards: Sequence[tf.Variable], decay: float, global_step: tf.Variable
  ) -> None:
    """
    Args:
      shards: the trained ones of the center.
      decay: 0 < decay < 1.
      global_step: int64 scalar variable.
    """
    self._shards = shards
    self._decay = decay
    self._global_step = global_step
    self.is_moved = False
    with tf.name_scope(None):
      self.variables = [_make_average(shard) for shard in shards]
      self._totals = [_make_total(average) for average in self.variables]
    graph_record.current().averages.append(self)

  def move_after(self, ops: Sequence[tf.Operation]) -> tf.Operation:
    """Returns the op that moves the averages once `ops` have run."""
    self.is_moved = True
    moves = []
    with tf.control_dependencies(ops), tf.name_scope('weight_averages'):
      with tf.device(self._global_step.device):
        t = tf.cast(self._global_step.read_value(), tf.float32)
        rate = 1 - tf.minimum(self._decay, (1 + t) / (10 + t))
      for shard, average, total in zip(
        self._shards, self.variables, self._totals, strict=True
      ):
        with tf.device(shard.device):
          change = total.read_value() - sums.widen(shard.read_value())
          change *= tf.cast(rate, change.dtype)
          moved = total.assign_sub(change, read_value=total is not average)
          if total is not average:
            rounded = tf.cast(moved, average.dtype.base_dtype)
            moved = average.assign(rounded, read_value=False)
        moves.append(moved)
    with tf.device(self._global_step.device):
      return tf.group(*moves)


def move_after(
  ops: Sequence[tf.Operation | tf.Tensor], has_moved: tf.Tensor | None = None
) -> list[tf.Operation]:
  """Returns `ops`, which end an update, and the ops that then move averages.

  Where a rule calls this more than once for an update, the first call counts.

  Args:
    has_moved: bool scalar tensor, whether the center was moved; None for yes.
  """
  averages = graph_record.current().averages
  found = [x for x in averages if not x.is_moved]
  if has_moved is None or not found:
    return [*ops, *(average.move_after(ops) for average in found)]
  with tf.control_dependencies(ops):
    move = tf.cond(
      tf.identity(has_moved),
      lambda: tf.group(*(average.move_after([]) for average in found)),
      tf.no_op,
    )
  return [*ops, move]


def _make_average(shard: tf.Variable) -> tf.Variable:
  with tf.device(shard.device):
    average = tf.Variable(
      shard.initial_value,
      trainable=False,
      name=f'{shard.op.name}/{NAME}',
      use_resource=True,
    )
  variable_lists.save_as_slice_like(shard, average)
  return average


def _make_total(average: tf.Variable) -> tf.Variable:
  """Returns the variable in whose dtype `average` is kept; often itself."""
  dtype = sums.choose_dtype(average.dtype)
  if dtype == average.dtype.base_dtype:
    return average
  with tf.device(average.device):
    total = tf.Variable(
      tf.cast(average.initial_value, dtype),
      trainable=False,
      name=f'{average.op.name}/{dtype.name}',
      use_resource=True,
    )
  variable_lists.save_as_slice_like(average, total)
  return total
