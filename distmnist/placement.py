"""Shards of variables and their place: partitioner, checks, bytes a ps."""

import tensorflow.compat.v1 as tf

from distmnist import cli, strategy


def make_partitioner(num_ps):
  """Returns a partitioner that cuts axis 0 into a shard a ps, or None.

  A variable with fewer rows than there are ps gets a shard a row, and a
  scalar stays whole: fixed_size_partitioner alone makes empty shards of the
  one and fails on the other.
  """
  if num_ps < 2:
    return None

  def partition(shape, dtype):
    if not shape.ndims:
      return [1]
    num_shards = max(1, min(num_ps, shape.as_list()[0]))
    return tf.fixed_size_partitioner(num_shards)(shape=shape, dtype=dtype)

  return partition


def sharded(num_ps):
  """The variable scope in which a model's variables are cut into shards."""
  return tf.variable_scope(
    tf.get_variable_scope(), partitioner=make_partitioner(num_ps)
  )


def count_bytes_per_ps(variables, num_ps):
  """Returns the list of bytes that each ps holds of `variables`."""
  held = [0] * num_ps
  for variable in variables:
    device = tf.DeviceSpec.from_string(variable.device)
    if device.job == 'ps':
      held[device.task] += strategy.count_bytes([variable])
  return held


def format_bytes_per_ps(variables, num_ps):
  """Returns one line: what each ps holds, and the largest over the mean."""
  held = count_bytes_per_ps(variables, num_ps)
  mean = sum(held) / num_ps
  each = ', '.join(f'ps {i} {n:,}' for i, n in enumerate(held))
  return f'bytes held: {each} (largest / mean {max(held) / mean:.2f})'


def check_center_is_on_ps(variables):
  """Every center variable must be shared.

  A variable built under a bare '/cpu:0' lands on each worker's own task, and
  the workers then train unconnected models in silence.

  Raises:
    cli.RunError: names the variables that are not on a ps.
  """
  astray = [
    f'{v.op.name} on {v.device or "no device"}'
    for v in variables
    if tf.DeviceSpec.from_string(v.device).job != 'ps'
  ]
  if astray:
    raise cli.RunError(
      f'variables must sit on a ps to be shared, but found {", ".join(astray)}:'
      ' build them with tf.get_variable and no device of their own'
    )
