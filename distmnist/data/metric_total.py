"""Metrics of a batch: a value per example, or what is not a mean of these."""

from typing import Any, NamedTuple

import tensorflow.compat.v1 as tf


class Total(NamedTuple):
  """A metric in the graph that is not a mean over the examples, such as AUC.

  Attributes:
    states: list of tensors, which are added up over all batches; a problem's
      `finish` makes the metric from the sums.
    value: float32 scalar tensor, the metric of this batch alone.
  """

  states: list
  value: Any


def check(make_error, name, values):
  """Returns a problem's metric, checked: float32 [n], or a Total.

  Args:
    make_error: callable(text) -> the error of the problem.
    name: str, of the metric.
    values: Total, or what can be converted to a tensor.

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
