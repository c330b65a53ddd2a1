"""Decoupled weight decay, beside any optimizer's step.

Loshchilov and Hutter 2019, "Decoupled weight decay regularization" (ICLR,
arXiv 1711.05101), algorithm 2 for Adam (AdamW). Here lambda is multiplied by
the whole rate eta and not by its schedule alone, as in PyTorch's AdamW:

  w <- w - eta lambda w - (the optimizer's step, of the w before)

Biases and the scales of batch norm, all of rank 0 or 1, decay only if this is
asked for. A shard has the rank of its variable, and each element decays on its
own, so w may be in any number of shards.
"""

from __future__ import annotations

import tensorflow.compat.v1 as tf


def decays(variable: tf.Variable, min_rank: int = 2) -> bool:
  """Returns whether `variable`, or a shard of one, decays."""
  return variable.shape.rank >= min_rank


def shrink(
  variable: tf.Variable, factor: float | tf.Tensor, gradient: tf.Tensor
) -> tf.Operation:
  """Returns the op w <- w - factor w, once the gradient is there.

  Args:
    variable: w.
    factor: float or float32 scalar tensor, eta lambda.
    gradient: float tensor of the step, which is computed with the old w.
  """
  with tf.control_dependencies([gradient]):
    value = variable.read_value()
    lost = tf.cast(factor, value.dtype) * value
  return variable.assign_sub(lost, read_value=False)
