"""Rows that a new table begins with, given with their keys.

They come from arrays that the model has (new_rows.NewRows) or from a table that
another run has trained (training/warm_start.py). The chief reads some of them
at a time and sends each ps those of its own buckets. A key gets its row there
as it does in a step (key_shard.py), but with the given values; what an
optimizer keeps beside it begins as it does beside these. So the rows are there
as if their keys had just been seen, and nothing is known of where they came
from: a run that goes on restores them like any others.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from typing import Protocol

import numpy as np
import tensorflow.compat.v1 as tf

from distmnist import graph_record
from distmnist.cluster import server
from distmnist.common import cli, partial_names
from distmnist.tables import key_hash, key_shard, key_table, new_rows
from distmnist.tables.sparse_table import NUM_BUCKETS

_log = logging.getLogger(__name__)

# Keys among which a search for those that are there twice sorts at once.
_KEYS_AT_ONCE = 2**22
_INT64 = np.iinfo(np.int64)


class Source(Protocol):
  """Where the rows of a table come from."""

  def read(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields (keys int64 [n], rows float32 [n, width]), no key twice."""
    ...

  def read_shared(self) -> np.ndarray | None:
    """Returns the row that each bucket's other keys share, [buckets, width].

    None: they begin as in any new table.
    """
    ...


class Given:
  """The arrays of NewRows(first=...), read in slices; a Source."""

  def __init__(self, first: new_rows.First) -> None:
    self._keys, self._rows = first.keys, first.rows

  def read(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """See Source.

    Raises:
      ValueError: in one line, what is no key, or a row that is not finite.
    """
    for begin, keys, rows in self._cut():
      with np.errstate(over='ignore'):  # It is then not finite.
        rows = np.asarray(rows, np.float32)
      is_wrong = ~np.isfinite(rows).all(1)
      if is_wrong.any():
        at = begin + int(np.argmax(is_wrong))
        raise ValueError(f'row {at} of first is not finite as float32')
      yield _make_keys(keys, begin), rows

  def read_shared(self) -> None:
    """See Source."""

  def read_keys(self) -> Iterator[np.ndarray]:
    """Yields the keys alone, int64 [n]."""
    for begin, keys, _ in self._cut():
      yield _make_keys(keys, begin)

  def _cut(self) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
    """Yields (place of the first, keys, rows) of each slice, as given."""
    row_bytes = 4 * self._rows.shape[1] + 8
    for begin, size in partial_names.cut_rows(len(self._keys), row_bytes):
      part = slice(begin, begin + size)
      yield begin, self._keys[part], self._rows[part]


def _make_keys(given: np.ndarray, begin: int) -> np.ndarray:
  """Returns keys as a table has them, int64 [n].

  Args:
    given: whole numbers or text, [n].
    begin: the place of the first one, for an error.

  Raises:
    ValueError: one of them is no key.
  """
  if given.dtype.kind in 'iu':
    is_wrong = (given > _INT64.max) | (given < new_rows.LOWEST_KEY)
    found = given.astype(np.int64)
  else:
    is_wrong = np.array([not isinstance(x, str | bytes) for x in given], bool)
    found = np.zeros(len(given), np.int64)
  if is_wrong.any():
    at = int(np.argmax(is_wrong))
    raise ValueError(
      f'key {begin + at} of first is {given.tolist()[at]!r:.60}: expected '
      f'text, or a whole number from {new_rows.LOWEST_KEY} to {_INT64.max}'
    )
  if given.dtype.kind in 'iu':
    return found
  return _compute(key_hash.find_fingerprints, given.astype(object), tf.string)


def _compute(
  build: Callable[[tf.Tensor], tf.Tensor], value: np.ndarray, dtype: tf.DType
) -> np.ndarray:
  """Returns what an op makes of an array [n], on the CPU of this process."""
  with tf.Graph().as_default(), tf.device('/cpu:0'):
    fed = tf.placeholder(dtype, [None])
    made = build(fed)
    with tf.Session(config=server.make_server_config()) as session:
      return session.run(made, {fed: value})


def check(
  table: str,
  made: new_rows.NewRows,
  goes_on: Callable[[], None] = lambda: None,
) -> None:
  """Reads all that a table is given, to find what is wrong before it is used.

  Memory: a slice of the rows, and of the keys four million at a time.

  Args:
    table: its name.
    made: with `first`.
    goes_on: called after each slice.

  Raises:
    ValueError: a line that names the table: a row is not finite, a key is none
      or there twice, or a part of the table has no room for its keys.
  """
  source, in_bucket = Given(made.first), np.zeros(NUM_BUCKETS, np.int64)
  try:
    for keys, _ in source.read():
      in_bucket += np.bincount(
        _compute(
          lambda x: key_hash.find_buckets(x, NUM_BUCKETS), keys, tf.int64
        ),
        minlength=NUM_BUCKETS,
      )
      goes_on()
    _check_once(source, int(in_bucket.sum()), goes_on)
  except ValueError as error:
    raise ValueError(f'the table {table!r}: {error}') from error
  room = made.rows_in_bucket - new_rows.NUM_RESERVED
  if in_bucket.max() > room:
    raise ValueError(
      f'the table {table!r}: {in_bucket.max():,} of the {in_bucket.sum():,} '
      f'keys of first are in one of its {NUM_BUCKETS} parts, which has room '
      f'for {room:,}: expected a larger capacity than {made.capacity:,}'
    )


def _check_once(
  source: Given, num_keys: int, goes_on: Callable[[], None]
) -> None:
  """Raises ValueError if a key is there twice.

  All keys are read once for each of some groups of equal ones.
  """
  num_groups = -(-num_keys // _KEYS_AT_ONCE)
  for group in range(num_groups):
    found = []
    for keys in source.read_keys():
      # The high bits of a product: keys may be in any order and rhythm.
      mixed = keys.view(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
      groups = (mixed >> np.uint64(32)) % np.uint64(num_groups)
      found.append(keys[groups == group])
      goes_on()
    keys = np.sort(np.concatenate(found))
    is_again = keys[1:] == keys[:-1]
    if is_again.any():
      one, other = _find_places(source, keys[1:][is_again][0])
      raise ValueError(f'key {one} and key {other} of first are the same')


def _find_places(source: Given, key: np.int64) -> list[int]:
  """Returns the first two places of a key."""
  found, begin = [], 0
  for keys in source.read_keys():
    found += (begin + np.flatnonzero(keys == key)).tolist()
    begin += len(keys)
  return found[:2]


class FirstRows:
  """The ops by which a table of the default graph takes given rows.

  Attributes:
    name: of the table.
    new_rows: it takes `first` of it, if it has that.
  """

  def __init__(
    self,
    table: key_table.KeyTable,
    begin_slots: key_shard.BeginSlots,
    device: str,
  ) -> None:
    """
    Args:
      begin_slots: see key_shard.connect_all.
      device: the CPU of the chief.
    """
    self.name, self.new_rows = table.parts[0].name, table.start.new_rows
    shape = [None, table.width]
    with tf.name_scope('first_rows'), tf.device(device):
      self._keys = tf.placeholder(tf.int64, [None], 'keys')
      self._rows = tf.placeholder(tf.float32, shape, 'rows')
      self._shared = tf.placeholder(tf.float32, shape, 'shared')
      owners = table.find_owners(self._keys)
    self._put: list[tf.Tensor] = []
    self._put_shared: list[tf.Operation] = []
    for i, part in enumerate(table.parts):
      begin, end = table.find_buckets_of(i)
      with tf.device(device):
        at = tf.where(tf.equal(owners, i))[:, 0]
        keys, rows = tf.gather(self._keys, at), tf.gather(self._rows, at)
        shared = self._shared[begin:end]
      self._put.append(part.build_put(keys, rows, begin_slots))
      self._put_shared.append(part.build_put_shared(shared, begin_slots))

  def put(
    self, session: tf.Session, source: Source, goes_on: Callable[[], None]
  ) -> None:
    """Gives the table all rows of a source; its maps are filled.

    Args:
      session: see put_all.
      goes_on: called after each slice.

    Raises:
      cli.RunError: it has no room for one, or what is read is wrong.
    """
    num_rows = 0
    try:
      for keys, rows in source.read():
        feed = {self._keys: keys, self._rows: rows}
        num_put = sum(session.run(self._put, feed))
        if num_put < len(keys):
          raise cli.RunError(
            f'the table {self.name!r} has no room for {len(keys) - num_put:,} '
            f'of the keys that it is to begin with, after {num_rows:,} rows: '
            'expected a larger capacity of NewRows'
          )
        num_rows += num_put
        goes_on()
    except ValueError as error:
      raise cli.RunError(f'the table {self.name!r}: {error}') from error
    shared = source.read_shared()
    if shared is not None:
      session.run(self._put_shared, {self._shared: shared})
    _log.info(f'the table {self.name!r} begins with {num_rows:,} given rows')


def build(begin_slots: key_shard.BeginSlots, device: str, of_all: bool) -> None:
  """Lets the tables of the default graph that make rows take given ones.

  Args:
    begin_slots: see key_shard.connect_all.
    device: the CPU of this process, the chief's.
    of_all: whether all of them may be given rows, or those with NewRows.first.
  """
  record = graph_record.current()
  for table in record.key_tables:
    if of_all or table.start.new_rows.first:
      record.first_rows.append(FirstRows(table, begin_slots, device))


def check_all(
  graph: tf.Graph, sources: Mapping[str, Source], goes_on: Callable[[], None]
) -> None:
  """Checks the arrays that put_all is going to give; see `check`.

  Args:
    graph: of the tables.
    sources, goes_on: see put_all.

  Raises:
    ValueError: see `check`.
  """
  for table in graph_record.of(graph).first_rows:
    if table.name not in sources and table.new_rows.first:
      check(table.name, table.new_rows, goes_on)


def put_all(
  session: tf.Session,
  sources: Mapping[str, Source],
  goes_on: Callable[[], None] = lambda: None,
) -> None:
  """Gives the new tables of a session's graph their first rows.

  Args:
    session: in which the maps of the tables are filled.
    sources: by table, in place of NewRows.first.
    goes_on: called after each slice.
  """
  for table in graph_record.of(session.graph).first_rows:
    source = sources.get(table.name)
    if source is None and table.new_rows.first:
      source = Given(table.new_rows.first)
    if source is not None:
      table.put(session, source, goes_on)
