"""Rows that are made when their keys are first seen: their layout in a table.

By its hash a key belongs to one of B = NUM_BUCKETS buckets, and the rows of a
bucket are contiguous. A ps has whole buckets, so that a checkpoint is the same
for any number of ps. In each bucket

  row 0   is shared by all its keys that have none of their own
  row 1   is never used, nor what an optimizer keeps beside it: with copies of
          it a checkpoint is filled up to a larger table
  others  are given away one after the other

Beside its rows a table has `keys`, one for each row. A bucket has room for more
keys than its share of `capacity`, as a hash fills buckets unevenly.
"""

from __future__ import annotations

import dataclasses
import math
import numbers
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow.compat.v1 as tf

from distmnist.data import initial_values
from distmnist.tables import key_hash
from distmnist.tables.sparse_table import NUM_BUCKETS

COMMON_ROW, CLEAN_ROW, NUM_RESERVED = range(3)
# In `keys`: marks of a free row, and of row 0, which tell the kind of the keys.
FREE = -(2**63)
MARKS = {'whole numbers': FREE + 1, 'text': FREE + 2}
LOWEST_KEY = FREE + 16

# Per key in the map of a ps: 48 to 49 were measured with 0.5 to 5 million keys.
BYTES_OF_KEY = 48
# Per row, in count_min_sketch.py and in row_reuse.py.
BYTES_OF_SIGHTINGS, BYTES_OF_AGE = 16, 8

# In standard deviations of a bucket's number of keys: with `capacity` keys the
# chance that a bucket is full is less than 10^-6.
_DEVIATIONS = 6


class First:
  """Rows that a table begins with; equal to those that lie where they do.

  Attributes:
    keys: [n], whole numbers or text.
    rows: [n, width], floats. Either may be mapped from a file.
    places: equal for the same two objects and the same views of them.
  """

  def __init__(self, keys: npt.ArrayLike, rows: npt.ArrayLike) -> None:
    self._given = keys, rows  # While they are kept, no others lie there.
    self.keys, self.rows = np.asarray(keys), np.asarray(rows)
    self.places = _find_place(keys), _find_place(rows)

  def __eq__(self, other: object) -> bool:
    if not isinstance(other, First):
      return NotImplemented
    return self.places == other.places

  def __hash__(self) -> int:
    return hash(self.places)

  def __repr__(self) -> str:
    return f'({len(self.rows):,} rows)'

  def find_mismatch(self, kind: str, width: int, capacity: int) -> str:
    """Returns why it is not for a table, or ''; reads no array.

    Args:
      kind: of the table's keys, a key of MARKS.
      width, capacity: of the table.
    """
    keys, rows = self.keys, self.rows
    kinds = 'iu' if kind == 'whole numbers' else 'USO'
    if keys.ndim != 1 or keys.dtype.kind not in kinds:
      return (
        f'expected keys [n] that are {kind}, as the ids are, not '
        f'{keys.dtype.name} {list(keys.shape)}'
      )
    if rows.ndim != 2 or rows.dtype.kind != 'f':
      return (
        f'expected rows [n, {width}] of floats, not {rows.dtype.name} '
        f'{list(rows.shape)}'
      )
    if len(keys) != len(rows):
      return (
        f'expected a row a key, not {len(rows):,} rows of {len(keys):,} keys'
      )
    if rows.shape[1] != width:
      return f'expected rows of width {width}, not {rows.shape[1]}'
    if len(keys) > capacity:
      return f'{len(keys):,} keys are more than the capacity, {capacity:,}'
    return ''


def _find_place(given: npt.ArrayLike) -> Hashable:
  """Returns what two views of the same memory have in common."""
  if not isinstance(given, np.ndarray):
    return id(given)
  address, _ = given.__array_interface__['data']
  return address, given.shape, given.strides, given.dtype


@dataclasses.dataclass(frozen=True)
class NewRows:
  """A table has a row for each key that it has seen; any key has one.

  Attributes:
    capacity: how many keys have rows of their own. Keys that come when
      there is no row left share the first row of their bucket, 60 in all.
    min_sightings: in how many of the workers' steps a key must be in the
      batch to get a row of its own; until then it shares that of its bucket.
    unseen_steps: if no row is left, a new key takes the row of a key that
      was in no batch of this many last steps of workers. 0 leaves each row to
      its key for good.
    first: (keys [n], rows [n, width]), what a new table begins with, or None;
      kept as a First. A run that goes on has its own rows and reads none.
  """

  capacity: int
  min_sightings: int = 1
  unseen_steps: int = 0
  first: Any = None

  def __post_init__(self) -> None:
    if isinstance(self.first, tuple | list) and len(self.first) == 2:
      object.__setattr__(self, 'first', First(*self.first))
    if not isinstance(self.first, First | None):
      raise ValueError(
        'NewRows: expected first=(keys, rows), two arrays, not '
        f'{type(self.first).__name__}'
      )
    for name, value in vars(self).copy().items():
      if isinstance(value, numbers.Integral):  # NumPy's, too.
        object.__setattr__(self, name, int(value))

  @property
  def rows_in_bucket(self) -> int:
    share = self.capacity / NUM_BUCKETS
    return NUM_RESERVED + math.ceil(
      share + _DEVIATIONS * math.sqrt(share) + _DEVIATIONS
    )

  @property
  def bytes_beside(self) -> int:
    """Bytes per row and key, beyond what a checkpoint has; at most."""
    counted, aged = self.min_sightings > 1, self.unseen_steps > 0
    return BYTES_OF_KEY + BYTES_OF_SIGHTINGS * counted + BYTES_OF_AGE * aged

  @property
  def num_positions(self) -> int:
    """The number of all rows of a table."""
    return NUM_BUCKETS * self.rows_in_bucket


@dataclasses.dataclass(frozen=True)
class Start:
  """What a table begins with, as an initializer of its rows.

  Attributes:
    kind: a key of MARKS.
    initializer: of a new row, see `is_initializer`.
  """

  new_rows: NewRows
  kind: str
  initializer: Callable[..., tf.Tensor]

  def __call__(
    self,
    shape: Sequence[int],
    dtype: tf.DType = tf.float32,
    partition_info: object = None,
  ) -> tf.Tensor:
    return tf.zeros(shape, dtype)

  def make_keys(
    self,
    shape: Sequence[int],
    dtype: tf.DType = tf.int64,
    partition_info: object = None,
  ) -> tf.Tensor:
    """The initializer of the table's `keys`, for whole buckets."""
    del partition_info
    places = tf.range(shape[0]) % self.new_rows.rows_in_bucket
    mark, free = tf.constant(MARKS[self.kind], dtype), tf.constant(FREE, dtype)
    return tf.where(
      tf.equal(places, COMMON_ROW),
      tf.fill([shape[0]], mark),
      tf.fill([shape[0]], free),
    )

  def make_rows(self, keys: tf.Tensor, width: int, seed: int) -> tf.Tensor:
    """Returns what the rows of new keys begin with, float32 [n, width].

    Args:
      keys: int64 [n].
      seed: a different one for each table.
    """
    how = self.initializer
    if isinstance(how, _CONSTANT):
      return tf.fill([tf.size(keys), 1], 1.0) * how([width], tf.float32)
    drawn = key_hash.draw(keys, width, seed)
    return initial_values.distribute(how, drawn)


_CONSTANT = (
  tf.constant_initializer,
  tf.zeros_initializer,
  tf.ones_initializer,
)
_DRAWN = (
  initial_values.UNIFORM,
  initial_values.NORMAL,
  initial_values.TRUNCATED,
)


def is_initializer(initializer: object) -> bool:
  """Whether new rows can begin with what an initializer gives."""
  return isinstance(initializer, _CONSTANT + _DRAWN)
