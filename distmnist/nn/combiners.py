"""Combines the rows of each example: their weighted sum, or a mean.

With the rows r_i of an example and their weights w_i:

  sum     sum_i w_i r_i
  mean    sum / sum_i w_i
  sqrtn   sum / sqrt(sum_i w_i^2)

and zeros where the divisor is 0.
"""

from __future__ import annotations

import tensorflow.compat.v1 as tf

COMBINERS = 'sum', 'mean', 'sqrtn'


def fits(
  weights: tf.Tensor | tf.RaggedTensor | tf.SparseTensor,
  ids: tf.Tensor | tf.RaggedTensor | tf.SparseTensor,
) -> bool:
  """Whether weights can be broadcast to the shape of ids, as far as known."""
  try:
    found = tf.broadcast_static_shape(weights.shape, ids.shape)
  except ValueError:
    return False
  return found.is_compatible_with(ids.shape)


def combine_dense(
  rows: tf.Tensor, weights: tf.Tensor | None, combiner: str
) -> tf.Tensor:
  """[..., ids, width] -> [..., width].

  Args:
    rows: float32.
    weights: float32, which can be broadcast to [..., ids]; None for 1.
    combiner: one of COMBINERS.
  """
  shape = tf.shape(rows)[:-1]
  if weights is None:
    each = tf.ones(shape, rows.dtype)
  else:
    each = tf.broadcast_to(weights, shape)  # Each row counts in a mean.
  total = tf.reduce_sum(rows * each[..., tf.newaxis], -2)
  if combiner == 'sum':
    return total
  return _divide(total, tf.reduce_sum(_weigh(each, combiner), -1), combiner)


def combine_lists(
  rows: tf.Tensor,
  weights: tf.Tensor | None,
  combiner: str,
  of: tf.Tensor,
  num: tf.Tensor,
) -> tf.Tensor:
  """[ids, width] -> [num, width].

  Args:
    rows: float32.
    weights: float32 [ids]; None for 1.
    combiner: one of COMBINERS.
    of: int64 [ids], each row's example.
    num: int64 [], the number of examples.
  """
  each = tf.ones(tf.shape(rows)[:1], rows.dtype) if weights is None else weights
  total = tf.math.unsorted_segment_sum(rows * each[:, tf.newaxis], of, num)
  if combiner == 'sum':
    return total
  sums = tf.math.unsorted_segment_sum(_weigh(each, combiner), of, num)
  return _divide(total, sums, combiner)


def _weigh(weights: tf.Tensor, combiner: str) -> tf.Tensor:
  return weights if combiner == 'mean' else tf.square(weights)


def _divide(total: tf.Tensor, sums: tf.Tensor, combiner: str) -> tf.Tensor:
  if combiner == 'sqrtn':
    sums = tf.sqrt(sums)
  return tf.math.divide_no_nan(total, sums[..., tf.newaxis])
