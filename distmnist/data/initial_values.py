"""First values that depend on (seed, name), whatever the initializer.

TensorFlow's initializers draw by ops whose seeds depend on how many ops the
graph has, and a variable in shards is drawn shard by shard: its first values,
and those of all variables after it, would depend on the number of ps. Here each
random op behind a first value gets a key of (seed, name of the variable, which
random op of it), a variable in shards is drawn once as a whole, and each shard
takes its part.

The rows of a table may not fit on one ps. Those of a uniform or normal
distribution are drawn shard by shard, each number by its place in the table.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf

from distmnist import tf_internals
from distmnist.data import seeds

UNIFORM = tf.random_uniform_initializer
NORMAL = tf.random_normal_initializer
TRUNCATED = tf.truncated_normal_initializer
# The part of a normal distribution beyond two deviations, on one side.
_CUT_OFF = 0.5 * math.erfc(2 / math.sqrt(2))
# The numbers of a block of Philox.
_BLOCK = 4


def draw_by_name(
  getter: Callable[..., tf.Variable], name: str, *args: Any, **kwargs: Any
) -> tf.Variable:
  """A custom getter (tf.variable_scope): `name` is drawn by its name."""
  dtype = tf.as_dtype(kwargs.get('dtype') or tf.float32)
  initializer, shape = kwargs.get('initializer'), kwargs.get('shape')
  if initializer is None and dtype.is_floating:
    initializer = tf.glorot_uniform_initializer()  # TensorFlow's own choice.
  if tf.is_tensor(initializer):
    initializer = _key_draws(initializer, name)
  elif inspect.isclass(initializer) or (
    callable(initializer) and shape is not None
  ):
    initializer = make_initializer(initializer, name)
  elif callable(initializer):
    initializer = _make_whole_initializer(initializer, name)
  return getter(name, *args, **{**kwargs, 'initializer': initializer})


def make_initializer(initializer: Any, name: str) -> Callable[..., tf.Tensor]:
  """Returns an initializer for tf.get_variable that draws by (seed, name).

  Args:
    initializer: what tf.get_variable takes, an object or its class. If it draws
      nothing, it is called as it would be. A seed of its own counts as well.
    name: of the variable.
  """
  if inspect.isclass(initializer):
    initializer = initializer()
  initializer, is_seeded = _seed_keras(initializer, name)
  own_seed = getattr(initializer, 'seed', None)
  takes_part = 'partition_info' in inspect.signature(initializer).parameters
  whole: dict[tf.Graph, tf.Tensor] = {}

  def call(
    shape: Sequence[int], dtype: tf.DType, partition_info: Any = None
  ) -> tf.Tensor:
    more = {'partition_info': partition_info} if takes_part else {}
    return tf.convert_to_tensor(initializer(shape, dtype=dtype, **more))

  def initialize(
    shape: Sequence[int],
    dtype: tf.DType = tf.float32,
    partition_info: Any = None,
  ) -> tf.Tensor:
    if partition_info is None:
      return _key_draws(call(shape, dtype), name, own_seed)
    graph = tf.get_default_graph()
    if graph not in whole:
      if not is_seeded:
        part = call(shape, dtype, partition_info)
        if not _find_draws(part):
          return part
      full_shape = list(partition_info.full_shape)
      whole[graph] = _key_draws(call(full_shape, dtype), name, own_seed)
    return tf.slice(whole[graph], partition_info.var_offset, shape)

  return initialize


def _make_whole_initializer(
  initializer: Callable[[], Any], name: str
) -> Callable[[], tf.Tensor]:
  """Returns an initializer like one that gives a variable its shape."""
  return lambda: _key_draws(tf.convert_to_tensor(initializer()), name)


def _seed_keras(initializer: Any, name: str) -> tuple[Any, bool]:
  """Returns (initializer, whether it is one of Keras's that draws).

  Keras draws by stateless ops, from a seed that is an attribute: one that it
  has itself drawn, of Python's random numbers.
  """
  if not type(initializer).__module__.startswith('keras.'):
    return initializer, False
  config = initializer.get_config()
  if 'seed' not in config:
    return initializer, False
  seed = seeds.derive(seeds.derive_first(name), config['seed']) % 2**31
  return type(initializer).from_config({**config, 'seed': seed}), True


def _find_draws(value: tf.Tensor) -> list[tf.Operation]:
  """Returns the ops behind a tensor that draw by op seeds."""
  found, seen, todo = [], set(), [value.op]
  while todo:
    op = todo.pop()
    if op in seen:
      continue
    seen.add(op)
    if {'seed', 'seed2'} <= {x.name for x in op.op_def.attr}:
      found.append(op)
    todo += [x.op for x in op.inputs]
  return found


def _key_draws(
  value: tf.Tensor, name: str, own_seed: int | None = None
) -> tf.Tensor:
  """Returns a first value whose draws depend on (seed, name) alone.

  Args:
    value: the first value.
    name: of its variable.
    own_seed: the initializer's own, or None.
  """
  first = seeds.derive_first(name)
  if own_seed is not None:
    first = seeds.derive(first, own_seed)
  for i, op in enumerate(_find_draws(value)):
    key = [first, i]
    with tf.device(op.device), tf.control_dependencies(None):
      drawn = _draw_again(op, key)
    if drawn is None:
      # There is no stateless op for it.
      tf_internals.set_attr(op, 'seed', _make_attr(key[0]))
      tf_internals.set_attr(op, 'seed2', _make_attr(1 + i))
      continue
    [old] = op.outputs
    for consumer in old.consumers():
      for index, given in enumerate(consumer.inputs):
        if given is old:
          tf_internals.set_input(consumer, index, drawn)
    if value is old:
      value = drawn
  return value


def _draw_again(op: tf.Operation, key: Sequence[int]) -> tf.Tensor | None:
  """Returns what a stateless op draws in the place of `op`, or None."""
  dtype = op.outputs[0].dtype
  if op.type == 'RandomUniform':
    return tf.random.stateless_uniform(op.inputs[0], key, dtype=dtype)
  if op.type == 'RandomStandardNormal':
    return tf.random.stateless_normal(op.inputs[0], key, dtype=dtype)
  if op.type == 'TruncatedNormal':
    return tf.random.stateless_truncated_normal(op.inputs[0], key, dtype=dtype)
  if op.type == 'RandomUniformInt':
    shape, minval, maxval = op.inputs
    return tf.random.stateless_uniform(shape, key, minval, maxval, dtype)
  return None


def _make_attr(number: int) -> tf.AttrValue:
  return tf.AttrValue(i=number)


def make_row_initializer(
  initializer: Any, name: str
) -> Callable[..., tf.Tensor]:
  """Returns an initializer for a table, like `make_initializer`.

  Args:
    initializer: as there; UNIFORM, NORMAL and TRUNCATED are drawn by row.
    name: of the variable, [rows, width].
  """
  if inspect.isclass(initializer):
    initializer = initializer()
  if not isinstance(initializer, UNIFORM | NORMAL | TRUNCATED):
    return make_initializer(initializer, name)
  seed = seeds.derive(seeds.derive_first(name), initializer.seed)

  def initialize(
    shape: Sequence[int],
    dtype: tf.DType = tf.float32,
    partition_info: Any = None,
  ) -> tf.Tensor:
    first = partition_info.var_offset[0] if partition_info else 0
    drawn = _draw_part(seed, first * shape[1], math.prod(shape))
    values = distribute(initializer, tf.reshape(drawn, shape))
    return tf.cast(values, dtype)

  return initialize


def _draw_part(seed: int, first: int, number: int) -> tf.Tensor:
  """Returns numbers of a sequence, float32 [number], between 0 and 1.

  Args:
    seed: of the sequence.
    first: the place of the first one in the sequence.
  """
  before = first % _BLOCK
  drawn = tf.raw_ops.StatelessRandomUniformV2(
    shape=[before + number],
    key=tf.constant([seed], tf.uint64),
    counter=tf.constant(np.array([first // _BLOCK, 0], np.uint64)),
    alg=1,  # Philox: block i is drawn from counter + i.
  )
  # They are multiples of 2^-23, from 0 on.
  return (drawn[before:] if before else drawn) + 2**-24


def distribute(how: Any, drawn: tf.Tensor) -> tf.Tensor:
  """Returns numbers of a distribution, float32.

  Args:
    how: UNIFORM, NORMAL or TRUNCATED.
    drawn: float32, uniform between 0 and 1, both ends excluded.
  """
  if isinstance(how, UNIFORM):
    return how.minval + (how.maxval - how.minval) * drawn
  if isinstance(how, TRUNCATED):
    drawn = _CUT_OFF + (1 - 2 * _CUT_OFF) * drawn
  return how.mean + how.stddev * tf.math.ndtri(drawn)
