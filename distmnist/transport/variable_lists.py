"""Ops for lists of variables, and variables saved as slices beside shards."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import tensorflow.compat.v1 as tf

from distmnist import tf_internals

# The collection of variables with which the model computes where they are, on
# their ps (nn/hidden.py), in place of a view of each.
IN_PLACE = 'distmnist/in_place'


def clear_all(variables: Sequence[tf.Variable]) -> tf.Operation:
  """Returns the op that sets `variables` to zeros."""
  return assign_all(variables, [tf.zeros(v.shape, v.dtype) for v in variables])


def assign_all(
  variables: Iterable[tf.Variable], values: Iterable[tf.Tensor]
) -> tf.Operation:
  """Returns the op that assigns values[i] to variables[i]."""
  return tf.group(
    *(
      variable.assign(value, read_value=False)
      for variable, value in zip(variables, values, strict=True)
    )
  )


def add_all(
  variables: Iterable[tf.Variable],
  values: Iterable[tf.Tensor],
) -> tf.Operation:
  """Returns the op that adds values[i] to variables[i], in its dtype."""
  return tf.group(
    *(
      variable.assign_add(tf.cast(value, variable.dtype), read_value=False)
      for variable, value in zip(variables, values, strict=True)
    )
  )


def save_as_slice_like(shard: tf.Variable, variable: tf.Variable) -> None:
  """Makes `variable` the slice of its whole that `shard` is of the center's."""
  if cut := tf_internals.get_slice(shard):
    # As slot_creator does for an optimizer's slots. The name contains the
    # shard's name, preceded by the rule's name scope.
    tf_internals.set_slice(
      variable,
      variable.op.name.replace(shard.op.name, cut.full_name),
      cut.full_shape,
      cut.var_offset,
      cut.var_shape,
    )
