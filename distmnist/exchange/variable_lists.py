"""One op for a list of variables: the copies of a worker, or the shards."""

import tensorflow.compat.v1 as tf


def clear_all(variables):
  """Returns the op that sets `variables` to zeros."""
  return assign_all(variables, [tf.zeros(v.shape, v.dtype) for v in variables])


def assign_all(variables, values):
  """Returns the op that assigns values[i] to variables[i]."""
  return tf.group(
    *(
      variable.assign(value, read_value=False)
      for variable, value in zip(variables, values, strict=True)
    )
  )


def add_all(variables, values):
  """Returns the op that adds values[i] to variables[i], in its dtype."""
  return tf.group(
    *(
      variable.assign_add(tf.cast(value, variable.dtype), read_value=False)
      for variable, value in zip(variables, values, strict=True)
    )
  )
