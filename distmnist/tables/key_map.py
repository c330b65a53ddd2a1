"""Which row of a table a key has, kept where the rows are.

The variable `keys` has the key of each row, and is in checkpoints. A hash map
beside it, which is in none, is filled from `keys` once these have values: see
`fill`.
"""

from __future__ import annotations

import contextlib
import uuid

import tensorflow.compat.v1 as tf

from distmnist import graph_record
from distmnist.common import cli
from distmnist.tables import key_hash, new_rows
from distmnist.transport import ps_state


class KeyMap:
  """The keys of the rows of some buckets, and how a key is looked up.

  Attributes:
    name: of the table.
    rows, keys: [rows, width] and int64 [rows], on one device.
    kind: of the keys, a key of new_rows.MARKS.
    filled: int64 scalar tensor, the mark of `keys` once the map is filled.
  """

  def __init__(
    self,
    name: str,
    rows: tf.Variable,
    keys: tf.Variable,
    start: new_rows.Start,
    first_bucket: int = 0,
  ) -> None:
    """
    Args:
      name: of the table.
      rows, keys: see above.
      first_bucket: the first one of those here.
    """
    self.rows, self.keys = rows, keys
    self.name, self._start, self.new_rows = name, start, start.new_rows
    self.kind = start.kind
    self._in_bucket = start.new_rows.rows_in_bucket
    self._first_bucket = first_bucket
    with tf.name_scope('key_map'), self.placed():
      self._map = ps_state.Table(self._find_name())
      self.filled = self._build_fill()
    graph_record.current().key_maps.append(self)

  def placed(self) -> contextlib.AbstractContextManager[None]:
    """Returns the context of ops that are placed where the rows are."""
    return tf.get_default_graph().colocate_with(self.rows.handle.op)

  def _find_name(self) -> str:
    # Two models served by one process have separate maps.
    return f'{self.rows.op.name}/map/{uuid.uuid4().hex}'

  def _build_fill(self) -> tf.Tensor:
    # The lowest numbers are not keys.
    keys = self.keys.read_value()
    used = tf.reshape(tf.where(keys >= new_rows.LOWEST_KEY), [-1])
    filled = self._map.replace_all(tf.gather(keys, used), used)
    with tf.control_dependencies([filled, *self._fill_more(keys)]):
      return tf.identity(keys[new_rows.COMMON_ROW])

  def _fill_more(self, keys: tf.Tensor) -> list[tf.Operation]:
    """Returns the ops that run along with the filling."""
    del keys
    return []

  def check(self, mark: int) -> None:
    """Checks the number that `filled` gave; see `fill`."""
    check_mark(mark, self.kind, self.name)

  def find_own(self, keys: tf.Tensor) -> tf.Tensor:
    """Returns the row of each of `keys`, int64 [n]; -1 where it has none."""
    return self._map.find(keys, -1)

  def find_common(self, keys: tf.Tensor) -> tf.Tensor:
    """Returns the row that each of `keys` has if it has none of its own."""
    return self.find_bucket(keys) * self._in_bucket + new_rows.COMMON_ROW

  def find_bucket(self, keys: tf.Tensor) -> tf.Tensor:
    """Returns the bucket of each of `keys`, counted from 0 in these rows."""
    buckets = key_hash.find_buckets(keys, new_rows.NUM_BUCKETS)
    return buckets - self._first_bucket

  def find(self, keys: tf.Tensor) -> tf.Tensor:
    """Returns the row of each of `keys`, int64 [n]; makes none."""
    found = self.find_own(keys)
    return tf.where(found < 0, self.find_common(keys), found)


def check_mark(mark: int, kind: str, name: str) -> None:
  """Checks that the keys in a checkpoint are of the model's kind.

  Args:
    mark: what `keys` has in new_rows.COMMON_ROW.
    kind: a key of new_rows.MARKS.
    name: of the table.

  Raises:
    cli.RunError: they are not.
  """
  kinds = {number: kind for kind, number in new_rows.MARKS.items()}
  if kinds.get(mark) != kind:
    raise cli.RunError(
      f'the keys of the table {name!r} in the checkpoint are '
      f'{kinds.get(mark, "of another version")}, but those of the model are '
      f'{kind}: give the model that it was trained with, or another --logdir'
    )


def get_all(graph: tf.Graph) -> list[KeyMap]:
  """Returns the maps of a graph."""
  return list(graph_record.of(graph).key_maps)


def fill(session: tf.Session) -> None:
  """Fills the maps of a session's graph; `keys` must have their values.

  Raises:
    cli.RunError: `keys` are of a different kind from the model's.
  """
  maps = get_all(session.graph)
  if maps:
    marks = session.run([key_map.filled for key_map in maps])
    for key_map, mark in zip(maps, marks, strict=True):
      key_map.check(mark)


def fill_when_loaded() -> None:
  """Makes a SavedModel of the default graph fill its maps when it is loaded."""
  for key_map in get_all(tf.get_default_graph()):
    tf.add_to_collection(tf.GraphKeys.TABLE_INITIALIZERS, key_map.filled.op)
  graph_record.forget(tf.get_default_graph())


def get_all_keys() -> list[tf.Variable]:
  """Returns the variables `keys` of the default graph's tables."""
  return [each.keys for each in get_all(tf.get_default_graph())]


def is_keys(variable: tf.Variable) -> bool:
  """Whether a variable of the default graph is the `keys` of a table."""
  return any(variable is keys for keys in get_all_keys())
