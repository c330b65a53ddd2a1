"""Sparse tables whose rows are made when their keys are first seen.

Each ps has whole buckets of such a table (new_rows.py): a shard of its rows and
of their keys, and a map from key to row. Inside a strategy's scope a model gets
a KeyTable, which makes rows in each step; elsewhere it gets a PlainTable, which
does not: an evaluation and a served model look up only the rows that exist.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow.compat.v1 as tf

from distmnist import graph_record, tf_internals
from distmnist.data import seeds
from distmnist.tables import (
  key_hash,
  key_map,
  key_shard,
  new_rows,
  row_numbering,
  sparse_table,
  touched_rows,
)


def get_table(
  start: new_rows.Start, width: int, name: str
) -> KeyTable | PlainTable:
  """Returns the table of the variable scope, made or found there.

  Args:
    name: for errors.

  Raises:
    ValueError: there is one already, with other rows or another kind of keys.
  """
  num_positions = start.new_rows.num_positions
  found = sparse_table.get_table(num_positions, width, start)
  # A strategy's scope makes a KeyTable for the initializer that a Start is.
  is_made = isinstance(found, sparse_table.Table)
  table: Any = found if is_made else _get_plain(found, start, name)
  if _differ_in_arrays(table.start.new_rows, start.new_rows):
    raise ValueError(
      f'embedding {name!r}: first has other arrays than the table of this name '
      'has: give the same two arrays, made once outside build()'
    )
  for what, of in (
    ('rows of', lambda x: x.new_rows),
    ('keys of', lambda x: x.kind),
  ):
    if of(table.start) != of(start):
      raise ValueError(
        f'embedding {name!r}: expected {what} {of(table.start)}, as the table '
        f'of this name has, not {of(start)}'
      )
  return table


def _differ_in_arrays(made: new_rows.NewRows, other: new_rows.NewRows) -> bool:
  """Whether two NewRows are equal but for the rows that they are given."""
  firsts = made.first, other.first
  return (
    all(firsts)
    and firsts[0] != firsts[1]
    and dataclasses.replace(other, first=firsts[0]) == made
  )


class PlainTable:
  """A table of variables, for one process that makes no rows."""

  def __init__(
    self, rows: tf.Variable, keys: tf.Variable, start: new_rows.Start, name: str
  ) -> None:
    self.rows, self.start = rows, start
    self._map = key_map.KeyMap(name, rows, keys, start)

  def look_up(self, keys: tf.Tensor) -> tf.Tensor:
    """Returns the rows of `keys`, int64 [n], as float32 [n, width]."""
    return tf.gather(self.rows, self._map.find(keys))


def _get_plain(
  rows: tf.Variable, start: new_rows.Start, name: str
) -> PlainTable:
  known = graph_record.current().plain_tables
  for table in known:
    if table.rows is rows:
      return table
  keys = tf.get_variable(
    'keys',
    rows.shape[:1],
    initializer=start.make_keys,
    **_make_key_settings(),
  )
  known.append(PlainTable(rows, keys, start, name))
  return known[-1]


class KeyTable(sparse_table.Table):
  """A table as a step sees it.

  Attributes: those of Table.
    parts: one for each of `shards`.
  """

  make_numbering = row_numbering.KeyNumbering

  def __init__(
    self,
    parts: list[key_shard.KeyShard],
    ends: list[int],
    start: new_rows.Start,
    device: str,
  ) -> None:
    """
    Args:
      ends: the bucket after the last one of each part.
      device: the model's.
    """
    super().__init__([part.rows for part in parts], device)
    self.parts, self.start = parts, start
    self._ends = ends

  def find_owners(self, keys: tf.Tensor) -> tf.Tensor:
    """Returns which of the shards each of `keys` belongs to, int32 [n]."""
    buckets = key_hash.find_buckets(keys, new_rows.NUM_BUCKETS)
    ends = tf.constant(self._ends[:-1], tf.int64)
    return tf.searchsorted(ends, buckets, 'right')

  def find_buckets_of(self, number: int) -> tuple[int, int]:
    """Returns (the first bucket, the one after the last) of a shard."""
    return self._ends[number - 1] if number else 0, self._ends[number]


def make(
  getter: Callable[..., Any],
  name: str,
  num_ps: int,
  device: str,
  **settings: Any,
) -> KeyTable:
  """Makes a KeyTable for a strategy; see sparse_table.make."""
  start = settings['initializer']
  table, in_bucket = name.rpartition('/')[0], start.new_rows.rows_in_bucket
  seed = seeds.derive_first(name)
  num_shards = max(1, min(num_ps, new_rows.NUM_BUCKETS))
  ends = [
    new_rows.NUM_BUCKETS * (i + 1) // num_shards for i in range(num_shards)
  ]
  parts = []
  for i, (begin, end) in enumerate(zip([0, *ends], ends, strict=False)):
    part = f'/part_{i}' if num_shards > 1 else ''
    place = begin * in_bucket, (end - begin) * in_bucket
    rows = _make_part(getter, name, part, place, settings)
    with tf.device(None), tf.device(rows.device):
      keys = _make_part(
        getter,
        f'{table}/keys',
        part,
        place,
        settings
        | _make_key_settings()
        | {'shape': settings['shape'][:1], 'initializer': start.make_keys},
      )
    parts.append(key_shard.KeyShard(table, rows, keys, start, begin, seed))
  touched_rows.add([part.rows for part in parts])
  made = KeyTable(parts, ends, start, device)
  graph_record.current().key_tables.append(made)
  return made


def _make_part(
  getter: Callable[..., Any],
  name: str,
  part: str,
  place: tuple[int, int],
  settings: Mapping[str, Any],
) -> tf.Variable:
  """Returns the shard of a variable at (first row, number of rows)."""
  begin, size = place
  shape = list(settings['shape'])
  made = getter(
    f'{name}{part}',
    **{**settings, 'shape': [size, *shape[1:]], 'partitioner': None},
  )
  if part:
    rest = shape[1:]
    tf_internals.set_slice(
      made, name, shape, [begin, *[0] * len(rest)], [size, *rest]
    )
  return made


def _make_key_settings() -> dict[str, Any]:
  return {
    'dtype': tf.int64,
    'trainable': False,
    'collections': [
      tf.GraphKeys.GLOBAL_VARIABLES,
      sparse_table.TABLES,
    ],
  }
