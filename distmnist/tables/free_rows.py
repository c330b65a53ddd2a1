"""Which rows of a shard new keys get: the free ones, one after the other.

If a bucket has none left, a key may take the row of another (row_reuse.py).
"""

from __future__ import annotations

import tensorflow.compat.v1 as tf

from distmnist.tables import new_rows, row_reuse
from distmnist.transport import ps_state


class FreeRows:
  """The rows of whole buckets, and how far they are given away.

  Attributes:
    counts: int64 [buckets, 3], since `reset`: the row of each bucket
      to be given away next, how often a key found no row left, and how often
      it took the row of another key.
    reuse: None if rows are their keys' for good.
  """

  def __init__(self, rows: tf.Variable, start: new_rows.Start) -> None:
    """
    Args:
      rows: [rows, width], where the counts are.
    """
    self._in_bucket = start.new_rows.rows_in_bucket
    self._num_buckets = int(rows.shape[0]) // self._in_bucket
    self._counts = ps_state.Variable(
      tf.int64, [self._num_buckets, 3], f'{rows.op.name}/counts'
    )
    self.reuse: row_reuse.RowReuse | None = None
    if start.new_rows.unseen_steps:
      self.reuse = row_reuse.RowReuse(rows, start)
    self.counts = self._counts.read()

  def reset(self, keys: tf.Tensor) -> list[tf.Operation]:
    """Returns the ops after which the rows of `keys` are given away.

    Args:
      keys: int64 [rows], the key of each row.
    """
    is_used = tf.reshape(keys >= new_rows.LOWEST_KEY, [self._num_buckets, -1])
    places = tf.range(self._in_bucket) * tf.cast(is_used, tf.int32)
    last = tf.maximum(tf.reduce_max(places, 1), new_rows.CLEAN_ROW)
    following = tf.cast(last, tf.int64) + 1
    none = tf.zeros_like(following)
    counted = self._counts.assign(tf.stack([following, none, none], 1))
    return [counted, *(self.reuse.reset() if self.reuse else [])]

  def find(self, buckets: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Finds rows for new keys and counts them, one caller at a time.

    Args:
      buckets: int64 [n], the bucket of each key, in order.

    Returns:
      (int64 [n], bool [n]): a place in its bucket for each key, and whether the
      key gets it.
    """
    counts = self._counts.gather(buckets)
    rank = tf.range(tf.size(buckets, out_type=tf.int64)) - tf.searchsorted(
      buckets, buckets, out_type=tf.int64
    )
    places = counts[:, 0] + rank
    is_free = has_row = places < self._in_bucket
    if self.reuse:
      at = tf.where(~is_free)
      free = tf.boolean_mask(buckets * self._in_bucket + places, is_free)
      # Otherwise a key without a free row might take one of these.
      with tf.control_dependencies([self.reuse.note(free)]):
        taken, is_old = self.reuse.choose(
          tf.gather_nd(buckets, at), tf.gather_nd(places, at) - self._in_bucket
        )
      places = tf.tensor_scatter_nd_update(places, at, taken)
      has_row = tf.tensor_scatter_nd_update(has_row, at, is_old)
    counted = [is_free, ~has_row, has_row & ~is_free]
    with tf.control_dependencies([places]):
      count = self._counts.scatter_add(
        buckets, tf.cast(tf.stack(counted, 1), tf.int64)
      )
    with tf.control_dependencies([count]):
      return places, tf.identity(has_row)
