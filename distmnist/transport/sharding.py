"""Shards of variables and their placement: partitioner, checks, bytes per ps.

A variable is cut along one axis: the first if that makes shards of about the
same size, else the longest, so that even a 5 x 5 x 32 x 64 kernel makes seven
shards. A variable whose shards would be tiny stays whole, as each shard costs a
message per step. Checkpoints do not depend on any of this.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf
from absl import flags

from distmnist.common import cli
from distmnist.transport import strategy

PARTITIONERS = 'fixed', 'min_max', 'none'

_PARTITIONER = flags.DEFINE_enum(
  'partitioner',
  'fixed',
  PARTITIONERS,
  'How variables are cut. fixed: one shard per ps, if that makes shards of at '
  'least 8 KiB; min_max: shards of at least 256 KiB, at most one per ps; none: '
  'not at all.',
)
_MAX_SHARD_MIB = flags.DEFINE_float(
  'max_shard_mib',
  None,
  'Largest shard in MiB, with --partitioner=fixed: a variable that would have '
  'larger ones is cut into more than one shard per ps, so that smaller parts '
  'of it are pushed, applied and pulled at a time. 0: one shard per ps. By '
  'default 1 with --sync_barrier=shard, else 0.',
  lower_bound=0,
)
_PLACEMENT = flags.DEFINE_enum(
  'placement',
  'balanced',
  ['balanced', 'round_robin'],
  'Which ps a shard goes to. balanced: the one that has the fewest bytes so '
  'far; round_robin: one after the other.',
)

# Shard sizes: below them fixed leaves a variable whole and min_max makes fewer.
_FIXED_BYTES = 8 << 10
_MIN_MAX_BYTES = 256 << 10


def make_partitioner(
  num_ps: int,
  kind: str = 'fixed',
  min_bytes: int = 0,
  max_bytes: int | None = None,
) -> Callable[[tf.TensorShape, tf.DType], list[int]] | None:
  """Returns a partitioner for tf.variable_scope, or None for no cuts.

  Args:
    kind: one of PARTITIONERS.
    min_bytes: `fixed` leaves a variable with smaller shards whole.
    max_bytes: `fixed` cuts a variable with larger shards further, into a
      multiple of num_ps shards. None for no such cut.
  """
  if kind == 'none' or not num_ps or (num_ps < 2 and not max_bytes):
    return None

  def partition(shape: tf.TensorShape, dtype: tf.DType) -> list[int]:
    num_bytes = shape.num_elements() * dtype.size
    num_shards = num_ps
    if kind == 'fixed' and max_bytes:
      num_shards *= max(1, math.ceil(num_bytes / (num_ps * max_bytes)))
    axis = find_axis(shape.as_list(), num_shards)
    if axis is None:
      return [1] * shape.ndims or [1]
    if kind == 'min_max':
      return tf.min_max_variable_partitioner(
        num_ps, axis, min_slice_size=_MIN_MAX_BYTES
      )(shape=shape, dtype=dtype)
    num_shards = min(num_shards, shape.as_list()[axis])
    if num_bytes < min_bytes * num_shards:
      num_shards = 1
    return tf.fixed_size_partitioner(num_shards, axis)(shape=shape, dtype=dtype)

  return partition


def find_axis(shape: list[int], num_ps: int) -> int | None:
  """Returns the axis to cut for `num_ps` shards, None if there is none."""
  if max(shape, default=1) < 2:
    return None
  # Three rows for two ps would make one twice as large as the other.
  is_even = shape[0] % num_ps == 0 or shape[0] >= 8 * num_ps
  return 0 if is_even else shape.index(max(shape))


def sharded(
  num_ps: int,
  kind: str = 'fixed',
  min_bytes: int = 0,
  max_bytes: int | None = None,
) -> tf.variable_scope:
  """The variable scope in which a model's variables are cut into shards."""
  return tf.variable_scope(
    tf.get_variable_scope(),
    partitioner=make_partitioner(num_ps, kind, min_bytes, max_bytes),
    custom_getter=_get_whole_if_empty,
  )


def _get_whole_if_empty(
  getter: Callable[..., tf.Variable], name: str, *args: Any, **kwargs: Any
) -> tf.Variable:
  """Calls `getter`; without a partitioner where there is nothing to cut.

  TensorFlow refuses even a single shard of a variable with no element.
  """
  shape, value = kwargs.get('shape'), kwargs.get('initializer')
  if shape is None and value is not None and not callable(value):
    shape = value.shape if tf.is_tensor(value) else np.shape(value)
  if shape is not None and tf.TensorShape(shape).num_elements() == 0:
    kwargs['partitioner'] = None
  return getter(name, *args, **kwargs)


def sharded_by_flags(
  num_ps: int, max_bytes: int | None = None
) -> tf.variable_scope:
  """As `sharded`, by flags; `max_bytes` is the rule's wish, an int or None."""
  max_bytes = max_bytes_from_flags(max_bytes)
  return sharded(num_ps, _PARTITIONER.value, _FIXED_BYTES, max_bytes)


def max_bytes_from_flags(wish: int | None) -> int | None:
  """Returns the most bytes of a shard; None for any, or the `wish`."""
  if _MAX_SHARD_MIB.value is None:
    return wish
  return int(_MAX_SHARD_MIB.value * (1 << 20)) or None


class LeastBytes:
  """A ps_strategy for replica_device_setter: the ps with the fewest bytes.

  All tasks build the same graph in the same order, and so agree. It is not
  called for slots, which sit beside their variable.
  """

  def __init__(self, num_ps: int) -> None:
    self._held = [0] * num_ps

  def __call__(self, op: tf.Operation) -> int:
    """Returns the task index of the ps for the op of a variable or a table."""
    index = self._held.index(min(self._held))
    # A table starts empty, and its size is not known.
    if 'shape' in op.node_def.attr:
      shape = [dim.size for dim in op.get_attr('shape').dim]
      dtype = tf.as_dtype(op.get_attr('dtype'))
      self._held[index] += math.prod(shape) * dtype.size
    return index


def ps_strategy_from_flags(num_ps: int) -> LeastBytes | None:
  """Returns the ps_strategy for replica_device_setter; None is round robin."""
  return LeastBytes(num_ps) if _PLACEMENT.value == 'balanced' else None


def count_bytes_per_ps(
  variables: Iterable[tf.Variable], num_ps: int
) -> list[int]:
  """Returns how many bytes of `variables` each ps holds."""
  held = [0] * num_ps
  for variable in variables:
    device = tf.DeviceSpec.from_string(variable.device)
    if device.job == 'ps':
      held[device.task] += strategy.count_bytes([variable])
  return held


def format_bytes_per_ps(variables: Iterable[tf.Variable], num_ps: int) -> str:
  """Returns one line: what each ps holds, and the largest over the mean."""
  held = count_bytes_per_ps(variables, num_ps)
  mean = sum(held) / num_ps
  each = ', '.join(f'ps {i} {n:,}' for i, n in enumerate(held))
  spread = f' (largest / mean {max(held) / mean:.2f})' if num_ps > 1 else ''
  return f'bytes held: {each}{spread}'


def check_center_is_on_ps(variables: Iterable[tf.Variable]) -> None:
  """Checks that every center variable is on a ps, and thus shared.

  A variable built under a bare '/cpu:0' lands on each worker's own task, and
  the workers then silently train unconnected models.

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
