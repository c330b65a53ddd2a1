"""Embeddings: rows of a table looked up by id, alone or combined.

Tables are sparse on the wire: under a strategy a step moves the rows that its
batch looks up, and no others (tables/row_exchange.py).
"""

from __future__ import annotations

import functools
import numbers
from collections.abc import Callable
from typing import Any, TypeAlias

import tensorflow.compat.v1 as tf

from distmnist.data import initial_values
from distmnist.nn import combiners
from distmnist.tables import key_hash, key_table, new_rows, sparse_table

# The name of the op that fails for an id without a row, or for weights of
# other ids.
CHECK = 'check_ids'

Ids: TypeAlias = tf.Tensor | tf.RaggedTensor | tf.SparseTensor


def embedding(
  ids: Ids,
  num_rows: int | new_rows.NewRows,
  width: int,
  name: str,
  weights: Ids | None = None,
  combiner: str | None = None,
  initializer: Callable[..., tf.Tensor] | None = None,
) -> tf.Tensor:
  """Looks up rows of a table; calls with the same name share one table.

  Args:
    ids: integers 0..num_rows - 1: a tensor, or a tf.RaggedTensor or
      tf.SparseTensor [n, ids], with any number of ids per example.
      With NewRows, keys: any integers from -2^63 + 16 on, or text.
    num_rows: int, or new_rows.NewRows for a table that makes a row for a key
      when training first sees it.
    width: numbers per row.
    name: of the table: the same name in the same variable scope is the same
      table, which then has the same shape.
    weights: float32 like `ids`, or broadcast to a tensor of them, by which a
      combiner multiplies the rows; None for 1.
    combiner: 'sum', 'mean' (over the sum of the weights) or 'sqrtn' (over the
      root of the sum of their squares) over the last axis of `ids`; zeros where
      there are no ids. None keeps each row, or means 'mean' if `ids` is ragged
      or sparse.
    initializer: of the table; by default uniform within +- 1 / sqrt(width).
      With NewRows one of TensorFlow's zeros_, ones_, constant_,
      random_uniform_, random_normal_ and truncated_normal_initializer; a row's
      initial value then depends on --seed, the table and the key alone.

  Returns:
    float32 [..., width], in the shape of `ids`; with a combiner, without its
    last axis.

  Raises:
    ValueError: the arguments do not fit each other or the existing table.
  """
  _check_table(ids, num_rows, width, name, initializer)
  _check_lists(ids, name, weights, combiner)
  start = initializer
  if start is None:
    start = tf.random_uniform_initializer(-(width**-0.5), width**-0.5)
  with tf.variable_scope(name, reuse=tf.AUTO_REUSE):
    find = _get_table(ids, num_rows, width, name, start)
    look_up = functools.partial(_look_up, find, width)
    if isinstance(ids, tf.Tensor):
      rows = look_up(ids)
      if combiner is None:
        return rows
      return combiners.combine_dense(rows, weights, combiner)
    if isinstance(ids, tf.SparseTensor):
      of, num = ids.indices[:, 0], ids.dense_shape[0]
    else:
      of, num = ids.value_rowids(), ids.nrows()
    weights = _find_values(weights, ids, name)
    combined = combiners.combine_lists(
      look_up(ids.values), weights, combiner or 'mean', of, num
    )
    combined.set_shape([ids.shape[0], width])
    return combined


def _get_table(
  ids: Ids,
  num_rows: int | new_rows.NewRows,
  width: int,
  name: str,
  initializer: Callable[..., tf.Tensor],
) -> Callable[[tf.Tensor], tf.Tensor]:
  """Returns a table's look-up, callable(ids [n]) -> rows [n, width]."""
  if isinstance(num_rows, new_rows.NewRows):
    start = new_rows.Start(num_rows, _find_kind(ids), initializer)
    table = key_table.get_table(start, width, name)
    return functools.partial(_look_up_keys, table, name)
  num_rows = int(num_rows)  # It may be NumPy's.
  num_positions = sparse_table.count_positions(num_rows)
  scope = tf.get_variable_scope().name
  initializer = initial_values.make_row_initializer(
    initializer, f'{scope}/rows'
  )
  table = sparse_table.get_table(num_positions, width, initializer)
  return functools.partial(_look_up_ids, table, num_rows, name)


def _find_kind(ids: Ids) -> str:
  return 'text' if ids.dtype == tf.string else 'whole numbers'


def _check_table(
  ids: Any, num_rows: Any, width: Any, name: str, initializer: Any
) -> None:
  if tf.get_default_graph().building_function:
    raise ValueError(
      f'embedding {name!r} is looked up in a loop, a branch or a tf.function: '
      'look its rows up beforehand, and pass them in'
    )
  if not isinstance(ids, (tf.Tensor, tf.RaggedTensor, tf.SparseTensor)):
    raise ValueError(
      f'embedding {name!r}: expected ids as a tensor, a tf.RaggedTensor or a '
      f'tf.SparseTensor, not {type(ids).__name__}'
    )
  is_made = isinstance(num_rows, new_rows.NewRows)
  if not (ids.dtype.is_integer or (is_made and ids.dtype == tf.string)):
    raise ValueError(
      f'embedding {name!r}: expected ids that are integers, not '
      f'{ids.dtype.name}: number the values, or give layers.NewRows(capacity) '
      'for num_rows, which takes text'
    )
  sizes = [('num_rows', num_rows, 1), ('width', width, 1)]
  if is_made:
    sizes[:1] = [
      ('capacity', num_rows.capacity, 1),
      ('min_sightings', num_rows.min_sightings, 1),
      ('unseen_steps', num_rows.unseen_steps, 0),
    ]
  for what, number, least in sizes:
    if not isinstance(number, numbers.Integral) or number < least:
      raise ValueError(
        f'embedding {name!r}: expected {what}, an int of {least} or more, '
        f'not {number!r}'
      )
  if is_made and num_rows.first:
    kind = _find_kind(ids)
    why = num_rows.first.find_mismatch(kind, width, num_rows.capacity)
    if why:
      raise ValueError(f'embedding {name!r}: first: {why}')
  is_drawn = initializer is None or new_rows.is_initializer(initializer)
  if is_made and not is_drawn:
    raise ValueError(
      f'embedding {name!r}: expected an initializer that can draw the rows of '
      'keys one by one: tf.zeros_, ones_, constant_, random_uniform_, '
      'random_normal_ or truncated_normal_initializer, not '
      f'{type(initializer).__name__}'
    )


def _check_lists(
  ids: Ids, name: str, weights: Ids | None, combiner: str | None
) -> None:
  if combiner is not None and combiner not in combiners.COMBINERS:
    raise ValueError(
      f'embedding {name!r}: expected the combiner '
      f'{", ".join(combiners.COMBINERS)} or None, not {combiner!r}'
    )
  is_tensor = isinstance(ids, tf.Tensor)
  if not is_tensor and ids.shape.rank != 2:
    raise ValueError(
      f'embedding {name!r}: expected ragged or sparse ids [n, ids], not of '
      f'rank {ids.shape.rank}'
    )
  if is_tensor and ids.shape.rank is None:
    raise ValueError(f'embedding {name!r}: expected ids of a known rank')
  if is_tensor and combiner and not ids.shape.rank:
    raise ValueError(
      f'embedding {name!r}: combiner={combiner!r} needs ids of rank 1 or more'
    )
  if weights is None:
    return
  if type(weights) is not type(ids):
    raise ValueError(
      f'embedding {name!r}: expected weights of the same kind as the ids, not '
      f'{type(weights).__name__}'
    )
  if is_tensor and combiner is None:
    raise ValueError(f'embedding {name!r}: weights need a combiner')
  if weights.dtype != tf.float32 or not combiners.fits(weights, ids):
    raise ValueError(
      f'embedding {name!r}: expected weights of float32 {ids.shape}, like the '
      f'ids, not of {weights.dtype.name} {weights.shape}'
    )


def _find_values(weights: Ids | None, ids: Ids, name: str) -> tf.Tensor | None:
  """Returns the values [ids] of ragged or sparse weights; None for None."""
  if weights is None:
    return None
  mine, theirs = (
    x.indices if isinstance(x, tf.SparseTensor) else x.row_splits
    for x in (ids, weights)
  )
  if mine is theirs:
    return weights.values
  is_same = tf.raw_ops.Equal(
    x=tf.cast(mine, tf.int64),
    y=tf.cast(theirs, tf.int64),
    incompatible_shape_error=False,
  )
  message = f'the weights for the table {name} are not at the places of the ids'
  checked = tf.raw_ops.Assert(
    condition=tf.reduce_all(is_same), data=[message], name=CHECK
  )
  with tf.control_dependencies([checked]):
    return tf.identity(weights.values)


def _look_up_ids(
  table: sparse_table.Table | tf.Variable,
  num_rows: int,
  name: str,
  ids: tf.Tensor,
) -> tf.Tensor:
  """Returns the rows of `ids`, int64 [n]."""
  ids = _check_ids(
    ids,
    (ids < 0) | (ids >= num_rows),
    f'the table {name} has rows 0 to {num_rows - 1}, and none of',
  )
  return sparse_table.look_up(table, sparse_table.find_positions(ids, num_rows))


def _look_up_keys(
  table: key_table.KeyTable | key_table.PlainTable, name: str, keys: tf.Tensor
) -> tf.Tensor:
  """Returns the rows of `keys`, int64 or string [n]."""
  if keys.dtype == tf.string:
    return table.look_up(key_hash.find_fingerprints(keys))
  return table.look_up(
    _check_ids(
      keys,
      keys < new_rows.LOWEST_KEY,
      f'the table {name} has keys from {new_rows.LOWEST_KEY} on, and none of',
    )
  )


def _check_ids(ids: tf.Tensor, is_wrong: tf.Tensor, message: str) -> tf.Tensor:
  """Returns `ids`, int64 [n], once none of them is wrong."""
  wrong = tf.boolean_mask(ids, is_wrong)[:3]
  # Not tf.Assert: its op is in a branch, where an error could not be located.
  checked = tf.raw_ops.Assert(
    condition=tf.equal(tf.size(wrong), 0), data=[message, wrong], name=CHECK
  )
  with tf.control_dependencies([checked]):
    return tf.identity(ids)


def _look_up(
  find: Callable[[tf.Tensor], tf.Tensor], width: int, ids: tf.Tensor
) -> tf.Tensor:
  """Returns the rows of `ids`, a tensor, in its shape plus one axis.

  Args:
    find: callable(ids [n]) -> rows [n, width].
    ids: tensor of integers or strings.
  """
  if ids.dtype != tf.string:
    ids = tf.cast(ids, tf.int64)
  rows = find(tf.reshape(ids, [-1]))
  if ids.shape.rank == 1:
    return rows
  shape = tf.concat([tf.shape(ids), [width]], 0)
  rows = tf.reshape(rows, shape)
  rows.set_shape([*ids.shape, width])
  return rows
