"""Ids that share rows: each row once, and one gradient for it.

The gradient of `tf.gather` adds up row by row. With the ids sorted beforehand,
which can be done while the rows are still on their way, adding up takes a fifth
of the time or less.
"""

from typing import NamedTuple

import tensorflow.compat.v1 as tf


class Places(NamedTuple):
  """Which of n rows each of m ids has.

  Attributes:
    of_ids: int32 [m], the row of each id.
    order: int32 [m], the ids by their rows, and those of a row in their order.
    in_order: int32 [m], the row of each id in that order.
  """

  of_ids: tf.Tensor
  order: tf.Tensor
  in_order: tf.Tensor


def join(parts):
  """Returns a list of tensors [n, ...] as one, without an op if it is alone."""
  return parts[0] if len(parts) == 1 else tf.concat(parts, 0)


def make_places(of_ids):
  """Returns the Places of int32 [m]."""
  order = tf.argsort(of_ids, stable=True)
  return Places(of_ids, order, tf.gather(of_ids, order))


def find_each(ids):
  """Returns (int64 [n], the ids in order and each once; Places of the ids).

  Args:
    ids: int64 [m].
  """
  order = tf.argsort(ids, stable=True)
  in_order = tf.gather(ids, order)
  before = tf.concat([in_order[:1] - 1, in_order[:-1]], 0)
  is_first = tf.not_equal(in_order, before)
  rows = tf.cumsum(tf.cast(is_first, tf.int32)) - 1
  of_ids = tf.gather(rows, tf.math.invert_permutation(order))
  return tf.boolean_mask(in_order, is_first), Places(of_ids, order, rows)


def gather(rows, places):
  """Returns the row of each id, [m, width].

  Args:
    rows: [n, width]; its gradient is dense.
    places: Places.
  """

  @tf.custom_gradient
  def spread(rows):
    def add_up(gradient):
      return tf.raw_ops.SparseSegmentSumWithNumSegments(
        data=gradient,
        indices=places.order,
        segment_ids=places.in_order,
        num_segments=tf.shape(rows)[0],
      )

    return tf.gather(rows, places.of_ids), add_up

  return spread(rows)
