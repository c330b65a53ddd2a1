"""Several tensors as one, and back.

Rows of a table, of which only the step knows how many there are, come last: in
front of them what is small takes as many rows of their width as it needs. The
parts of such a tensor are cut out without a copy.
"""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow.compat.v1 as tf


def pack(tensors: Sequence[tf.Tensor]) -> tf.Tensor:
  """Returns tensors of one dtype as one.

  Args:
    tensors: the last one may be rows, [n, width].
  """
  *small, last = tensors
  if not small:
    return last
  if last.shape.is_fully_defined():
    return flatten(tensors)
  flat, width = flatten(small), last.shape[1]
  if left := -flat.shape[0] % width:
    flat = tf.pad(flat, [[0, left]])
  return tf.concat([tf.reshape(flat, [-1, width]), last], 0)


def unpack(packed: tf.Tensor, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
  """Returns a list like `tensors`, from what `pack` made of them."""
  *small, last = tensors
  if not small:
    return [packed]
  if last.shape.is_fully_defined():
    return split_like(packed, tensors)
  size, width = sum(x.shape.num_elements() for x in small), last.shape[1]
  first, rest = tf.split(packed, [-(-size // width), -1])
  rest.set_shape(last.shape)
  flat = tf.reshape(first, [-1])
  if size % width:
    flat = flat[:size]
  return [*split_like(flat, small), rest]


def flatten(
  tensors: Sequence[tf.Tensor], dtype: tf.DType | None = None
) -> tf.Tensor:
  """Returns all elements of `tensors` as one tensor of shape [size].

  Args:
    tensors: of one dtype unless another is given.
    dtype: tf.DType of the result, or None.
  """
  dtype = dtype or tensors[0].dtype.base_dtype
  flat = [tf.reshape(tf.cast(x, dtype), [-1]) for x in tensors]
  return tf.concat(flat, 0) if len(flat) > 1 else flat[0]


def split_like(
  flat: tf.Tensor, tensors: Sequence[tf.Tensor | tf.Variable]
) -> list[tf.Tensor]:
  """Returns `flat` split into the shapes and dtypes of `tensors`."""
  parts = [flat]
  if len(tensors) > 1:
    parts = tf.split(flat, [x.shape.num_elements() for x in tensors])
  return [
    tf.reshape(tf.cast(part, x.dtype.base_dtype), x.shape)
    for part, x in zip(parts, tensors, strict=True)
  ]
