"""The keys by which a worker asks the ps for rows, and their shards.

A key stands for a row of any table of a RowExchange. Keys are sent shard by
shard: ps by ps, and table by table for each ps. The accumulators of sync_sgd
need the rows of a shard in order: they merge sorted lists, and silently keep
rows twice if a list is not sorted.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING

import tensorflow.compat.v1 as tf

from distmnist.tables import shared_rows

if TYPE_CHECKING:
  from distmnist.tables import key_table, sparse_table


class Numbering:
  """The shards of some tables, grouped by ps.

  Attributes:
    places: (device, its shards) for each ps.
  """

  def __init__(self, tables: Sequence[sparse_table.Table]) -> None:
    self._tables = tables
    shards = [shard for table in tables for shard in table.shards]
    devices = list(dict.fromkeys(shard.device for shard in shards))
    self.places = [
      (device, [shard for shard in shards if shard.device == device])
      for device in devices
    ]
    self._in_order = [shard for _, group in self.places for shard in group]

  @property
  def lookups(self) -> list[tuple[tf.Tensor, tf.Tensor]]:
    """The lookups of all tables, as in sparse_table.Table."""
    return [pair for table in self._tables for pair in table.lookups]

  def find_keys(self) -> tuple[tf.Tensor, shared_rows.Places, tf.Tensor]:
    """Returns (keys, places, numbers) of the step, on the worker.

    keys: int64 [n], shard by shard, each once. places:
    which of `keys` is each id's. numbers: int64 [shards], how many keys each
    shard has.
    """
    raise NotImplementedError

  def find_rows(
    self, shard: tf.Variable, keys: tf.Tensor
  ) -> tuple[tf.Tensor, tf.Tensor | None]:
    """Returns (rows, owners) of a shard's keys, int64 [n], on its ps.

    rows: int64, in order, each once. owners: int32 [n], which of `rows` is each
    key's, or None if it is the one at the key's own position.
    """
    raise NotImplementedError

  def find_owned(
    self, shard: tf.Variable, rows: tf.Tensor
  ) -> tuple[tf.Variable, tf.Tensor] | None:
    """Returns what tells whose a shard's `rows`, int64 [n], are, on its ps.

    (a variable, its values int64 [n] now): while these stay the same, the rows
    belong to the same keys. None if rows never change hands.
    """
    del shard, rows
    return None


class PositionNumbering(Numbering):
  """For tables whose ids are rows: a key is the row's number among all rows.

  Keys in order form ranges, one for each shard.
  """

  def __init__(self, tables: Sequence[sparse_table.Table]) -> None:
    super().__init__(tables)
    sizes = [int(shard.shape[0]) for shard in self._in_order]
    self._bounds = list(itertools.accumulate(sizes))
    self._first = {
      shard.op.name: end - size
      for shard, end, size in zip(
        self._in_order, self._bounds, sizes, strict=True
      )
    }

  def find_keys(self) -> tuple[tf.Tensor, shared_rows.Places, tf.Tensor]:
    found = []
    for table in self._tables:
      begins = [0, *itertools.accumulate(int(s.shape[0]) for s in table.shards)]
      moves = [
        self._first[shard.op.name] - begin
        for shard, begin in zip(table.shards, begins, strict=False)
      ]
      for positions, _ in table.lookups:
        move = moves[0]
        if len(set(moves)) > 1:
          owners = tf.searchsorted(
            tf.constant(begins[1:-1], tf.int64), positions, 'right'
          )
          move = tf.gather(tf.constant(moves, tf.int64), owners)
        found.append(positions + move)
    keys, places = shared_rows.find_each(
      shared_rows.join(found), self._bounds[-1]
    )
    return keys, places, _count_between(keys, self._bounds)

  def find_rows(
    self, shard: tf.Variable, keys: tf.Tensor
  ) -> tuple[tf.Tensor, None]:
    first = self._first[shard.op.name]
    return (keys - first if first else keys), None


class KeyNumbering(Numbering):
  """For tables whose rows are made: a key is the user's own, within a table."""

  def __init__(self, tables: Sequence[key_table.KeyTable]) -> None:
    super().__init__(tables)
    self._key_tables = tables
    self._index = {s.op.name: i for i, s in enumerate(self._in_order)}
    self._keys = {
      part.rows.op.name: part.keys for table in tables for part in table.parts
    }
    self._find = {
      part.rows.op.name: part.find_or_make if table.makes_rows else part.find
      for table in tables
      for part in table.parts
    }

  def find_keys(self) -> tuple[tf.Tensor, shared_rows.Places, tf.Tensor]:
    keys, places, shards, num_before = [], [], [], 0
    for table in self._key_tables:
      if not table.lookups:
        continue
      keys_of, places_of = tf.unique(
        shared_rows.join([ids for ids, _ in table.lookups])
      )
      index = [self._index[shard.op.name] for shard in table.shards]
      owners = table.find_owners(keys_of)
      keys.append(keys_of)
      places.append(places_of + num_before)
      shards.append(tf.gather(tf.constant(index), owners))
      num_before += tf.size(keys_of)
    keys, places, shards = (tf.concat(x, 0) for x in (keys, places, shards))
    numbers = tf.math.bincount(
      shards, minlength=len(self._index), maxlength=len(self._index)
    )
    keys, places = sort(keys, places, shards, len(self._index))
    numbers = tf.cast(numbers, tf.int64)
    return keys, shared_rows.make_places(places), numbers

  def find_rows(
    self, shard: tf.Variable, keys: tf.Tensor
  ) -> tuple[tf.Tensor, tf.Tensor]:
    rows, owners = tf.unique(self._find[shard.op.name](keys))
    return sort(rows, owners, rows, int(shard.shape[0]))

  def find_owned(
    self, shard: tf.Variable, rows: tf.Tensor
  ) -> tuple[tf.Variable, tf.Tensor]:
    keys = self._keys[shard.op.name]
    return keys, keys.sparse_read(rows)


def sort(
  values: tf.Tensor, places: tf.Tensor, by: tf.Tensor, end: int
) -> tuple[tf.Tensor, tf.Tensor]:
  """Returns (values, places): `values` in the order of `by`, none lost.

  Args:
    values: [n].
    places: int32 [m], indices into `values`.
    by: int32 or int64 [n], not negative.
    end: what all of these are below.
  """
  _, order = shared_rows.sort(by, end)
  return (
    tf.gather(values, order),
    tf.gather(tf.math.invert_permutation(order), places),
  )


def _count_between(keys: tf.Tensor, bounds: Sequence[int]) -> tf.Tensor:
  """Returns how many of `keys` are in each range, int64 [bounds].

  Args:
    keys: int64 [n], in order.
    bounds: the end of each range; the first one begins at 0.
  """
  ends = tf.searchsorted(keys, tf.constant(bounds, tf.int64), out_type=tf.int64)
  return ends - tf.concat([[tf.constant(0, tf.int64)], ends[:-1]], 0)
