"""Sparse tables: variables of which a step moves only the rows of its batch.

Row r of a table lies at the position

  p(r) = (r mod B) C + r div B,   C = ceil(num_rows / B),   B = NUM_BUCKETS

and each ps has a range of the positions. So neighbouring rows, of which the
first are often the most frequent, lie on different ps, and yet a checkpoint is
the same for any number of ps: a table is sliced like any other variable. Up to
B - 1 rows at the ends of the buckets are never used.

A model gets a table from `get_table`: inside a strategy's scope a Table whose
shards are on the ps, and elsewhere a variable. For how rows move, see
tables/row_exchange.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf

from distmnist.tables import row_numbering, shard_slices, touched_rows

# The collection of the shards of all tables.
TABLES = 'distmnist/sparse_tables'
# Divided evenly among 1 to 6, 10, 12, 15, 20 and 30 ps.
NUM_BUCKETS = 60


def count_positions(num_rows: int) -> int:
  """Returns how many rows a table has, with the unused ones of the buckets."""
  return _count_buckets(num_rows) * _count_in_bucket(num_rows)


def find_positions(
  ids: np.ndarray | tf.Tensor, num_rows: int
) -> np.ndarray | tf.Tensor:
  """Returns p(r) of each of `ids`, int64, in the same shape."""
  num_buckets = _count_buckets(num_rows)
  places = ids // num_buckets
  buckets = ids - places * num_buckets  # The remainder, without dividing again.
  return buckets * _count_in_bucket(num_rows) + places


def find_id(position: int | np.ndarray, num_positions: int) -> int | np.ndarray:
  """Returns r of p(r) in a table that has `num_positions` positions."""
  num_buckets = _count_buckets(num_positions)
  in_bucket = num_positions // num_buckets
  return position % in_bucket * num_buckets + position // in_bucket


def _count_buckets(num_rows: int) -> int:
  return min(NUM_BUCKETS, num_rows)


def _count_in_bucket(num_rows: int) -> int:
  return -(-num_rows // _count_buckets(num_rows))


def find_name(shard: tf.Variable) -> str:
  """Returns the name of the table of a shard, as a model gives it."""
  # Not from its own name: a table may be called part_id.
  return shard_slices.find_place(shard)[0].rpartition('/')[0]


def get_table(
  num_positions: int, width: int, initializer: Callable[..., tf.Tensor] | None
) -> Table | tf.Variable:
  """Returns the table `rows` of the variable scope, made or found there.

  Args:
    initializer: as tf.get_variable takes it.

  Returns:
    A Table inside a strategy's scope, else a variable [positions, width].

  Raises:
    ValueError: the one found there has another shape.
  """
  shape, scope = [num_positions, width], tf.get_variable_scope().name
  for shard in tf.get_collection(TABLES):
    name, found, _ = shard_slices.find_place(shard)
    if name == f'{scope}/rows' and found != shape:
      what = 'width' if found[1] != width else 'num_rows'
      raise ValueError(
        f'embedding {scope!r}: there is a table of this name with another '
        f'{what}: give one of the two another name'
      )
  return tf.get_variable(
    'rows',
    shape,
    initializer=initializer,
    collections=[tf.GraphKeys.GLOBAL_VARIABLES, TABLES],
  )


def look_up(table: Table | tf.Variable, positions: tf.Tensor) -> tf.Tensor:
  """Returns the rows at `positions`, int64 [n], as float32 [n, width]."""
  if isinstance(table, Table):
    return table.look_up(positions)
  return tf.gather(table, positions)


def set_rows(
  variable: tf.Variable, rows: tf.Tensor, values: tf.Tensor
) -> tf.Operation:
  """Returns the op that sets rows of a shard, or of what is beside it.

  Args:
    rows: int64 [n], each once.
    values: [n, ...].
  """
  return tf.raw_ops.ResourceScatterUpdate(
    resource=variable.handle, indices=rows, updates=values
  )


class Table:
  """A table as a step sees it: its shards, and what is looked up in them.

  Attributes:
    shards: in the order of their positions.
    lookups: (positions int64 [n], rows float32 [n, width])s; the rows get their
      values once all lookups of the step are known.
    makes_rows: whether a step makes rows for ids that have none.
    make_numbering: numbers the rows of several such tables.
  """

  makes_rows = False
  make_numbering: type[row_numbering.Numbering] = (
    row_numbering.PositionNumbering
  )

  def __init__(self, shards: list[tf.Variable], device: str | None) -> None:
    """
    Args:
      device: the model's.
    """
    self.shards = shards
    self.width = int(shards[0].shape[1])
    self.dtype = shards[0].dtype.base_dtype
    self.lookups: list[tuple[Any, tf.Tensor]] = []
    self._device = device

  def look_up(self, positions: tf.Tensor) -> tf.Tensor:
    with tf.device(self._device):
      rows = tf.identity(
        tf.placeholder(self.dtype, [positions.shape[0], self.width]), 'rows'
      )
    self.lookups.append((positions, rows))
    return rows


def make(
  getter: Callable[..., Any],
  name: str,
  num_ps: int,
  device: str,
  **settings: Any,
) -> Table:
  """Makes a table for a strategy; called by its variable scope.

  Args:
    getter: makes a variable, as tf.get_variable does.
    device: the model's.
    **settings: keywords of `getter`.
  """
  num_shards = max(1, min(num_ps, settings['shape'][0]))
  cut = tf.fixed_size_partitioner(num_shards) if num_shards > 1 else None
  made = getter(name, **settings | {'partitioner': cut})
  shards = [made] if tf.is_tensor(made) else list(made)
  touched_rows.add(shards)
  return Table(shards, device)
