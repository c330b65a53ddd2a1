"""Tables of which a graph gets the rows of one batch, read from a checkpoint.

A process that only tries a checkpoint out has no room for a whole table: inside
`StoredTables.scope` a large one is a placeholder for the rows that are looked
up, as in a training step before it knows all look-ups.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import tensorflow.compat.v1 as tf

from distmnist.common import partial_names
from distmnist.tables import key_hash, key_map, new_rows, sparse_table

_KEYS_AT_ONCE = 2**17


class Part(Protocol):
  """Some rows of a stored variable: `size` of them, from row `first`."""

  @property
  def first(self) -> int: ...

  @property
  def size(self) -> int: ...


class Reader(Protocol):
  """What reads a checkpoint: logdir/checkpoint_reader.Reader."""

  shapes: dict[str, list[int]]

  def find_slices(self, name: str) -> Sequence[Part]: ...

  def read(self, name: str, part: Any) -> np.ndarray: ...


class StoredTables:
  """The large tables of the model that is built in `scope`.

  Attributes:
    specs: by name in a checkpoint, what it must have of them.
    new_rows: by table, of those whose rows are made.
  """

  def __init__(self, most_bytes: int = partial_names.SLICE_BYTES) -> None:
    """
    Args:
      most_bytes: the most of a table that is a variable all the same.
    """
    self._most_bytes = most_bytes
    self._tables: dict[str, _Table] = {}
    self.specs: dict[str, tf.TensorSpec] = {}
    self.new_rows: dict[str, new_rows.NewRows] = {}

  @contextlib.contextmanager
  def scope(self) -> Iterator[None]:
    """The variable scope in which the model is built."""
    with tf.variable_scope(
      tf.get_variable_scope(), custom_getter=self._get_variable
    ):
      yield

  def _get_variable(
    self, getter: Callable[..., Any], name: str, *args: Any, **kwargs: Any
  ) -> tf.Variable | sparse_table.Table:
    if sparse_table.TABLES not in (kwargs.get('collections') or ()):
      return getter(name, *args, **kwargs)
    shape = kwargs['shape']
    if 4 * np.prod(shape) <= self._most_bytes:
      return getter(name, *args, **kwargs)
    if name not in self._tables:
      start = kwargs['initializer']
      self.specs[name] = tf.TensorSpec(shape, tf.float32)
      if isinstance(start, new_rows.Start):
        table = name.rpartition('/')[0]
        self.specs[f'{table}/keys'] = tf.TensorSpec(shape[:1], tf.int64)
        self.new_rows[table] = start.new_rows
        self._tables[name] = _KeyTable(name, shape[1], start)
      else:
        self._tables[name] = _Table(name, shape[1])
    return self._tables[name]

  def ask(self, session: tf.Session) -> dict[str, list[Any]]:
    """Returns what the graph looks up, for `read`.

    Args:
      session: everything else has its value in it.
    """
    return session.run(
      {
        name: [asked for asked, _ in table.lookups]
        for name, table in self._tables.items()
      }
    )

  def read(
    self, reader: Reader, wanted: Mapping[str, list[Any]]
  ) -> dict[tf.Tensor, np.ndarray]:
    """Returns what to feed: the rows that the graph looks up.

    Args:
      reader: of a checkpoint that fits `specs`.
      wanted: what `ask` has returned.

    Raises:
      cli.RunError: the keys of a table are of another kind than the model's.
    """
    fed = {}
    for name, asked in wanted.items():
      table = self._tables[name]
      rows = _read_rows(reader, name, table.find_rows(reader, asked))
      ends = np.cumsum([_count(some) for some in asked])[:-1]
      for (_, to), values in zip(
        table.lookups, np.split(rows, ends), strict=True
      ):
        fed[to] = values
    return fed


class _Table(sparse_table.Table):
  """A table whose rows are numbered."""

  def __init__(self, name: str, width: int) -> None:
    self._name, self.width, self.dtype = name, width, tf.float32
    self.shards, self.lookups, self._device = [], [], None

  def find_rows(self, reader: Reader, asked: Sequence[Any]) -> np.ndarray:
    """Returns the rows that are looked up, int64 [n].

    Args:
      asked: the values of what stands first in each of `lookups`.
    """
    del reader
    return np.concatenate(asked)


class _KeyTable(_Table):
  """A table whose rows are made when their keys are first seen."""

  def __init__(self, name: str, width: int, start: new_rows.Start) -> None:
    super().__init__(name, width)
    self.start = start

  def look_up(self, positions: tf.Tensor) -> tf.Tensor:
    rows = super().look_up(positions)
    buckets = key_hash.find_buckets(positions, new_rows.NUM_BUCKETS)
    self.lookups[-1] = (positions, buckets), rows
    return rows

  def find_rows(self, reader: Reader, asked: Sequence[Any]) -> np.ndarray:
    table = self._name.rpartition('/')[0]
    name = f'{table}/keys'
    wanted, buckets = (np.concatenate(x) for x in zip(*asked, strict=True))
    in_bucket = reader.shapes[name][0] // new_rows.NUM_BUCKETS
    found = buckets * in_bucket + new_rows.COMMON_ROW
    distinct, places = np.unique(wanted, return_inverse=True)
    own = np.full(len(distinct), -1)
    for part in reader.find_slices(name):
      keys = reader.read(name, part)
      if part.first == 0:
        key_map.check_mark(keys[new_rows.COMMON_ROW], self.start.kind, table)
      # A search among all keys of a slice takes several times their memory.
      for begin in range(0, len(keys), _KEYS_AT_ONCE):
        some = keys[begin : begin + _KEYS_AT_ONCE]
        here = np.flatnonzero(np.isin(some, distinct))
        own[np.searchsorted(distinct, some[here])] = part.first + begin + here
    return np.where(own[places] < 0, found, own[places])


def _count(asked: np.ndarray | tuple[np.ndarray, ...]) -> int:
  return len(asked[0] if isinstance(asked, tuple) else asked)


def _read_rows(reader: Reader, name: str, rows: np.ndarray) -> np.ndarray:
  """Returns rows of a variable, [n, width]; reads no slice without one."""
  found = np.zeros([len(rows), reader.shapes[name][1]], np.float32)
  for part in reader.find_slices(name):
    is_here = (rows >= part.first) & (rows < part.first + part.size)
    if is_here.any():
      found[is_here] = reader.read(name, part)[rows[is_here] - part.first]
  return found
