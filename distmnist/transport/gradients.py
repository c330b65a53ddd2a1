"""The gradients of a step: which variables they move, and as which tensors."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import tensorflow.compat.v1 as tf

from distmnist.common import cli
from distmnist.transport import sums


def find_moved(
  pairs: Iterable[tuple[Any, tf.Variable]],
) -> list[tuple[Any, tf.Variable]]:
  """Returns the pairs whose variable the loss reaches.

  A loss does not reach a head that it does not use, or what is frozen by
  tf.stop_gradient.

  Args:
    pairs: (gradient, variable), from Optimizer.compute_gradients; the gradient
      is None for a variable that is not reached.

  Raises:
    cli.UsageError: no variable is reached.
  """
  moved = [pair for pair in pairs if pair[0] is not None]
  if not moved:
    raise cli.UsageError(
      'the loss has no gradient for any trainable variable: it uses none, or '
      'only behind tf.stop_gradient or an op that has no gradient, such as '
      'tf.argmax'
    )
  return moved


def make_dense(
  gradient: tf.Tensor | tf.IndexedSlices | None,
) -> tf.Tensor | None:
  """Returns a gradient as one tensor, also that of rows from tf.gather.

  Args:
    gradient: float tensor, None, or tf.IndexedSlices, where a row may occur
      twice.
  """
  if gradient is None or not isinstance(gradient, tf.IndexedSlices):
    return gradient
  with tf.device(gradient.device):
    return tf.convert_to_tensor(gradient)


def weigh(gradients: Iterable[tf.Tensor], weight: tf.Tensor) -> list[tf.Tensor]:
  """Returns gradients times a weight, each on its own device.

  Args:
    gradients: float tensors.
    weight: float32 scalar tensor.
  """
  weighed = []
  for gradient in gradients:
    with tf.device(gradient.device):
      weighed.append(sums.weigh(gradient, weight))
  return weighed
