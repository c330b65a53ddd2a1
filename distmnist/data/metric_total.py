"""Metrics of a batch: a value per example, or what is not a mean of these.

A weight says how much an example counts: the mean of a metric is then
sum(weight * value) / sum(weight), as that of Keras's weighted metrics.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow.compat.v1 as tf


class Total(NamedTuple):
  """A metric in the graph that is not a mean over the examples, such as AUC.

  Attributes:
    states: what is added up over all batches; a problem's `finish` makes the
      metric from the sums.
    value: float32 [], the metric of this batch alone.
    is_mean: whether it is a mean after all, so that the values of batches have
      a mean that says something: one of each training step is kept then.
  """

  states: list[tf.Tensor]
  value: tf.Tensor
  is_mean: bool = False


class Mean(NamedTuple):
  """A mean whose two sums are added up over all batches.

  Attributes:
    total: float32 [], or a number.
    weight: likewise, what it is divided by.
  """

  total: Any
  weight: Any

  @classmethod
  def of(cls, values: tf.Tensor, weights: tf.Tensor | None = None) -> Mean:
    """Returns the Mean of a batch.

    Args:
      values: float32 [n].
      weights: float32 [n], or None.
    """
    if weights is None:
      return cls(
        tf.reduce_sum(values), tf.cast(tf.shape(values)[0], tf.float32)
      )
    return cls(tf.reduce_sum(weights * values), tf.reduce_sum(weights))

  def __add__(self, other: Mean) -> Mean:
    """Returns the Mean of both parts, of floats in double precision."""
    return Mean(
      *(float(a) + float(b) for a, b in zip(self, other, strict=True))
    )

  def compute(self) -> float:
    """Returns the mean; 0 if nothing counts, as in Keras."""
    return self.total / self.weight if self.weight else 0.0


def build_mean(
  values: Total | tf.Tensor, weights: tf.Tensor | None = None
) -> tf.Tensor:
  """Returns a metric of one batch, float32 [].

  Args:
    values: a Total, or float32 [n].
    weights: float32 [n], or None.
  """
  if isinstance(values, Total):
    return values.value
  if weights is None:
    return tf.reduce_mean(values)
  return tf.math.divide_no_nan(*Mean.of(values, weights))


def check(
  make_error: Callable[[str], Exception], name: str, values: Any
) -> Total | tf.Tensor:
  """Returns a problem's metric, checked: float32 [n], or a Total.

  Args:
    make_error: makes the error of the problem from its text.
    name: of the metric.
    values: a Total, or what can be converted to a tensor.

  Raises:
    cli.UsageError: it has another shape, or is not numbers.
  """
  if isinstance(values, Total):
    if values.value.shape.ndims:
      raise make_error(
        f'the metric {name!r} gives numbers of shape {values.value.shape}: '
        "expected one, as with average='macro'"
      )
    return values
  try:
    values = tf.convert_to_tensor(values)
    is_number = not values.dtype.is_quantized and values.dtype != tf.string
  except (TypeError, ValueError):
    is_number = False
  if not is_number:
    raise make_error(
      f'metrics() gave {name!r} as {values!r:.60}: expected a tensor of '
      'numbers, one an example'
    )
  if values.shape.ndims != 1:
    raise make_error(
      f'metrics() gave {name!r} of shape {values.shape}: expected one value an '
      'example; what is no mean over examples goes into finish()'
    )
  return tf.cast(values, tf.float32)
