"""Decoupled weight decay, beside any optimizer's step.

Loshchilov and Hutter 2019, "Decoupled weight decay regularization" (ICLR,
arXiv 1711.05101), algorithm 2 for Adam (AdamW). Here lambda is multiplied by
the whole rate eta and not by its schedule alone, as in PyTorch's AdamW:

  w <- w - eta lambda w - (the optimizer's step, of the w before)

Biases and the scales of batch norm, all of rank 0 or 1, decay only if this is
asked for. A shard has the rank of its variable, and each element decays on its
own, so w may be in any number of shards.
"""

import functools

import tensorflow.compat.v1 as tf

from distmnist.nn import lean_updates


def add(optimizer, learning_rate, weight_decay, min_rank=2):
  """Makes `optimizer` decay weights whenever it applies a gradient to them.

  Args:
    optimizer: tf.train.Optimizer whose step does not depend on w.
    learning_rate: float or float32 scalar tensor, eta.
    weight_decay: float, lambda.
    min_rank: int, the smallest rank of what decays.
  """
  optimizer._resource_apply_dense = functools.partial(
    _apply_and_decay,
    optimizer._resource_apply_dense,
    lean_updates.make_number(learning_rate),
    weight_decay,
    min_rank,
  )


def decays(variable, min_rank=2):
  """Returns whether `variable`, or a shard of one, decays, a bool."""
  return variable.shape.rank >= min_rank


def _apply_and_decay(
  apply, learning_rate, weight_decay, min_rank, gradient, variable
):
  if not decays(variable, min_rank):
    return apply(gradient, variable)
  # By now this step has computed its gradient with the old w.
  with tf.control_dependencies([gradient]):
    value = variable.read_value()
    lost = tf.cast(learning_rate * weight_decay, value.dtype) * value
  decayed = variable.assign_sub(lost, read_value=False)
  with tf.control_dependencies([decayed]):
    return apply(gradient, variable)
