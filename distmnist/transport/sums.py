"""The dtype in which numbers are added up: 32 bits where they have 16.

A sum of float16 overflows where its numbers do not, and one of bfloat16 stops
while what is added is below half of its last bit. What is kept over several
steps, workers or slices to be added to is kept in this dtype; what is made of
it, a mean or a change, is then rounded to the dtype of the weights.

Several tensors are added up in one order, so that a sum has the same bits in
every run. tf.add_n begins with whichever input's memory it may reuse, which is
of chance from three on, and Grappler makes one of a chain of additions.
"""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow.compat.v1 as tf


def choose_dtype(dtype: tf.DType) -> tf.DType:
  """Returns the tf.DType in which tensors of `dtype` are added up."""
  is_narrow = dtype.is_floating and dtype.size < tf.float32.size
  return tf.float32 if is_narrow else dtype.base_dtype


def widen(tensor: tf.Tensor) -> tf.Tensor:
  """Returns a tensor in the dtype in which it is to be added up, or squared."""
  return tf.cast(tensor, choose_dtype(tensor.dtype))


def add_up(tensors: Sequence[tf.Tensor]) -> tf.Tensor:
  """Returns the sum of a list of tensors of one shape, see `choose_dtype`."""
  wide = [widen(tensor) for tensor in tensors]
  return wide[0] + wide[1] if len(wide) == 2 else tf.reduce_sum(wide, 0)


def build_mean(
  tensors: Sequence[tf.Tensor], weights: Sequence[tf.Tensor] | None = None
) -> tf.Tensor:
  """Returns the mean of a list of float tensors of one shape and dtype.

  Args:
    tensors: the list.
    weights: float32 scalar tensors, how much each counts; None if all count
      alike.
  """
  if weights is None:
    return tf.cast(add_up(tensors) / len(tensors), tensors[0].dtype)
  weighted = [
    weigh(widen(tensor), weight)
    for tensor, weight in zip(tensors, weights, strict=True)
  ]
  mean = divide(add_up(weighted), add_up(weights))
  return tf.cast(mean, tensors[0].dtype)


def weigh(tensor: tf.Tensor, weight: tf.Tensor) -> tf.Tensor:
  """Returns a float tensor times a float32 scalar tensor, in its own dtype."""
  return tensor * tf.cast(weight, tensor.dtype)


def divide(total: tf.Tensor, weight: tf.Tensor) -> tf.Tensor:
  """Returns a sum of weighed tensors over the sum of weights; 0 if that is 0.

  Args:
    total: float tensor.
    weight: float32 scalar tensor.
  """
  return tf.math.divide_no_nan(total, tf.cast(weight, total.dtype))
