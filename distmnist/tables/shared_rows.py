"""Ids that share rows: each row once, and one gradient for it.

The gradient of `tf.gather` adds up row by row. With the ids sorted beforehand,
which can be done while the rows are still on their way, adding up takes a fifth
of the time or less.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
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


def join(parts: Sequence[tf.Tensor]) -> tf.Tensor:
  """Returns tensors [n, ...] as one, without an op if it is alone."""
  return parts[0] if len(parts) == 1 else tf.concat(parts, 0)


def sort(numbers: tf.Tensor, end: int) -> tuple[tf.Tensor, tf.Tensor]:
  """Returns (the numbers in order, int64; their places before, int32).

  Those that are equal stay in their order. A number and its place are sorted as
  one: tf.argsort sorts places by the numbers that they point to, and then those
  of equal numbers once more.

  Args:
    numbers: int32 or int64 [m], not negative.
    end: what all of them are below. What it leaves of 63 bits is for the
      places: with 10^12 numbers there may be 8 million.
  """
  num_bits = 63 - (end - 1).bit_length()
  bits, mask = (tf.constant(x, tf.int64) for x in (num_bits, 2**num_bits - 1))
  numbers = tf.bitwise.left_shift(tf.cast(numbers, tf.int64), bits)
  both = tf.sort(numbers + tf.range(tf.size(numbers, out_type=tf.int64)))
  order = tf.cast(tf.bitwise.bitwise_and(both, mask), tf.int32)
  return tf.bitwise.right_shift(both, bits), order


def make_places(of_ids: tf.Tensor) -> Places:
  """Returns the places of ids that have the rows `of_ids`, int32 [m]."""
  in_order, order = sort(of_ids, int(of_ids.dtype.max))
  return Places(of_ids, order, tf.cast(in_order, tf.int32))


def find_each(ids: tf.Tensor, end: int) -> tuple[tf.Tensor, Places]:
  """Returns (int64 [n], the ids in order and each once; their places).

  Args:
    ids: int64 [m], not negative.
    end: what all of them are below.
  """
  in_order, order = sort(ids, end)
  each, rows = tf.unique(in_order)
  return each, Places(tf.dynamic_stitch([order], [rows]), order, rows)


def gather(rows: tf.Tensor, places: Places) -> tf.Tensor:
  """Returns the row of each id, [m, width].

  Args:
    rows: [n, width]; its gradient is dense.
  """

  @tf.custom_gradient
  def spread(
    rows: tf.Tensor,
  ) -> tuple[tf.Tensor, Callable[[tf.Tensor], tf.Tensor]]:
    def add_up(gradient: tf.Tensor) -> tf.Tensor:
      return tf.raw_ops.SparseSegmentSumWithNumSegments(
        data=gradient,
        indices=places.order,
        segment_ids=places.in_order,
        num_segments=tf.shape(rows)[0],
      )

    return tf.gather(rows, places.of_ids), add_up

  return spread(rows)
