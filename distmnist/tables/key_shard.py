"""Makes rows on a ps for the keys that a worker asks for.

  found <- the map of the keys;  missing <- keys that are not found
  in turn with all other workers, and only if any is missing:
    look again; for each that is still missing, if its bucket has a free row:
      the row <- its first value
      what the optimizer keeps beside it <- what begins beside such a row
      keys[row] <- key;  the map[key] <- row

A key may first have to be seen several times (count_min_sketch.py), and in a
full bucket it may take the row of another key (free_rows.py).

In turn: the op BatchFunction runs a function for one worker after the other, in
a thread outside the worker's step. It finishes what it began even if that
worker dies in the meantime, whereas a dying worker would open a lock
(center/ps_lock.py).
"""

from __future__ import annotations

from collections.abc import Callable

import tensorflow.compat.v1 as tf

from distmnist import graph_record, tf_internals
from distmnist.tables import (
  count_min_sketch,
  free_rows,
  key_map,
  new_rows,
  sparse_table,
  touched_rows,
)

# Given a shard and the first values of new rows of it, float32 [n, width]: the
# variables beside the shard, each with what its new rows begin with.
BeginSlots = Callable[
  [tf.Variable, tf.Tensor], list[tuple[tf.Variable, tf.Tensor]]
]

# More workers than could ever wait for their turn.
_MOST_WAITING = 2**20


class KeyShard(key_map.KeyMap):
  """The keys of a shard of a table, on its ps.

  Attributes: those of KeyMap.
    counts: see free_rows.FreeRows.
  """

  def __init__(
    self,
    name: str,
    rows: tf.Variable,
    keys: tf.Variable,
    start: new_rows.Start,
    first_bucket: int,
    seed: int,
  ) -> None:
    """
    Args:
      name, rows, keys, start, first_bucket: see KeyMap.
      seed: of the table's first values.
    """
    self._seed = seed
    with tf.get_default_graph().colocate_with(rows.handle.op):
      self._places = free_rows.FreeRows(rows, start)
      self._sightings: count_min_sketch.CountMinSketch | None = None
      if start.new_rows.min_sightings > 1:
        self._sightings = count_min_sketch.CountMinSketch(rows)
    self._reuse, self.counts = self._places.reuse, self._places.counts
    super().__init__(name, rows, keys, start, first_bucket)

  def _find_name(self) -> str:
    return f'{self.rows.op.name}/map'  # The same for all workers.

  def _fill_more(self, keys: tf.Tensor) -> list[tf.Operation]:
    more = self._sightings.reset() if self._sightings else []
    return [*self._places.reset(keys), *more]

  def find_or_make(self, keys: tf.Tensor) -> tf.Tensor:
    """Returns the row of each of `keys`, int64 [n], none of them there twice.

    The result has a value once `connect_all` has been called.
    """
    found = self.find_own(keys)
    if self._reuse:
      # Before a new key looks for a row that has long not been seen.
      seen = self._reuse.touch(tf.boolean_mask(found, found >= 0))
      with tf.control_dependencies([seen]):
        found = tf.identity(found)
    at = tf.where(found < 0)
    missing = tf.gather(keys, at[:, 0])
    # A batch of one entry, or of none: then the function is not called.
    self._missing = missing[tf.newaxis][: tf.minimum(tf.size(missing), 1)]
    self._made = tf.identity(tf.placeholder(tf.int64, [None, None]))
    graph_record.current().open_shards.append(self)
    made = tf.reshape(self._made, [-1])
    return tf.tensor_scatter_nd_update(found, at, made)

  def connect(self, begin_slots: BeginSlots) -> None:
    """Connects the op that makes rows; see `connect_all`."""

    def make(missing: tf.Tensor) -> tf.Tensor:
      return self._make(tf.reshape(missing, [-1]), begin_slots)[tf.newaxis]

    with tf.device(None), tf.control_dependencies(None):
      function = tf.function(make, autograph=False).get_concrete_function(
        tf.TensorSpec([None, None], tf.int64)
      )

    def call(missing: tf.Tensor) -> tf.Tensor:
      # Else each table has a scheduler: of 26 they waste a sixth of a core.
      with tf_internals.batch_one_by_one():
        [made] = tf.raw_ops.BatchFunction(
          in_tensors=[missing],
          captured_tensors=function.captured_inputs,
          f=function,
          num_batch_threads=1,
          max_batch_size=1,
          batch_timeout_micros=0,
          max_enqueued_batches=_MOST_WAITING,
          Tout=[tf.int64],
          shared_name=f'{self.rows.op.name}/make',
        )
      return made

    with self.placed(), tf.control_dependencies(None):
      made = call(self._missing)
      if self._reuse:
        nothing = tf.zeros([1, 0], tf.int64)
        self._reuse.add_hold(lambda: call(nothing).op)
    tf_internals.set_input(self._made.op, 0, made)

  def _make(self, keys: tf.Tensor, begin_slots: BeginSlots) -> tf.Tensor:
    """Returns the rows of keys that were not found, int64 [n]."""
    new = tf.boolean_mask(keys, self.find_own(keys) < 0)
    if self._sightings:
      seen = self._sightings.count(new)
      new = tf.boolean_mask(new, seen >= self.new_rows.min_sightings)
    given = self._give_rows(new, begin_slots)
    with tf.control_dependencies([given]):
      return self.find(keys)

  def build_put(
    self, keys: tf.Tensor, values: tf.Tensor, begin_slots: BeginSlots
  ) -> tf.Tensor:
    """Builds what gives keys of this shard rows, while no worker makes steps.

    Args:
      keys: int64 [n], none of which has a row, each once.
      values: float32 [n, width], the rows.
      begin_slots: see `connect_all`.

    Returns:
      int64 scalar tensor: how many of them there was a row for.
    """
    with self.placed(), tf.control_dependencies(None):
      return self._give_rows(keys, begin_slots, values)

  def build_put_shared(
    self, values: tf.Tensor, begin_slots: BeginSlots
  ) -> tf.Operation:
    """Returns the op that sets the rows that keys without one share.

    Args:
      values: float32 [buckets, width], those of this shard.
      begin_slots: see `connect_all`.
    """
    with self.placed(), tf.control_dependencies(None):
      buckets = tf.range(tf.shape(values, out_type=tf.int64)[0])
      rows = buckets * self._in_bucket + new_rows.COMMON_ROW
      return tf.group(*self._begin_rows(rows, values, begin_slots))

  def _give_rows(
    self,
    new: tf.Tensor,
    begin_slots: BeginSlots,
    values: tf.Tensor | None = None,
  ) -> tf.Tensor:
    """Gives new keys rows; returns how many it had for them, int64, then.

    Args:
      new: int64 [n].
      begin_slots: see `connect_all`.
      values: float32 [n, width], the rows; None for what is drawn for the keys.
    """
    buckets = self.find_bucket(new)
    order = tf.argsort(buckets, stable=True)
    new, buckets = tf.gather(new, order), tf.gather(buckets, order)
    places, has_row = self._places.find(buckets)
    rows = tf.boolean_mask(buckets * self._in_bucket + places, has_row)
    new = tf.boolean_mask(new, has_row)
    if values is None:
      width = int(self.rows.shape[1])
      values = self._start.make_rows(new, width, self._seed)
    else:
      values = tf.boolean_mask(tf.gather(values, order), has_row)
    with tf.control_dependencies([has_row, *self._take(rows)]):
      begun = self._begin_rows(rows, values, begin_slots)
    with tf.control_dependencies(begun):
      noted = sparse_table.set_rows(self.keys, rows, new)
    with tf.control_dependencies([noted]):
      mapped = self._map.insert(new, rows)
    with tf.control_dependencies([mapped]):
      return tf.size(new, out_type=tf.int64)

  def _take(self, rows: tf.Tensor) -> list[tf.Operation]:
    """Returns the ops after which `rows` belong to no other keys."""
    if not self._reuse:
      return []
    before = self.keys.sparse_read(rows)
    is_key = before >= new_rows.LOWEST_KEY
    unmapped = self._map.remove(tf.boolean_mask(before, is_key))
    with tf.control_dependencies([unmapped]):
      free = tf.fill(tf.shape(rows), tf.constant(new_rows.FREE, tf.int64))
      return [
        sparse_table.set_rows(self.keys, rows, free),
        self._reuse.note(rows),
      ]

  def _begin_rows(
    self, rows: tf.Tensor, first: tf.Tensor, begin_slots: BeginSlots
  ) -> list[tf.Operation]:
    """Returns the ops that give rows their first values."""
    values = [(self.rows, first), *begin_slots(self.rows, first)]
    ops = [sparse_table.set_rows(v, rows, value) for v, value in values]
    return touched_rows.mark_after(ops, self.rows, rows)


def connect_all(begin_slots: BeginSlots) -> None:
  """Has the default graph make its rows; all variables must be made by now."""
  record = graph_record.current()
  for shard in record.open_shards:
    shard.connect(begin_slots)
  record.open_shards = []


def get_counts() -> tuple[
  dict[str, new_rows.NewRows], dict[str, list[tf.Tensor]]
]:
  """Returns what the tables of the default graph have made.

  Returns:
    ({table: what its rows are}, {table: KeyShard.counts of each shard}).
  """
  kinds: dict[str, new_rows.NewRows] = {}
  counts: dict[str, list[tf.Tensor]] = {}
  for shard in key_map.get_all(tf.get_default_graph()):
    if isinstance(shard, KeyShard):
      kinds[shard.name] = shard.new_rows
      counts.setdefault(shard.name, []).append(shard.counts)
  return kinds, counts
