"""Decoupled weight decay, beside any optimizer's step.

Loshchilov and Hutter 2019, "Decoupled weight decay regularization" (ICLR,
arXiv 1711.05101), algorithm 2 for Adam (AdamW). Here lambda is multiplied by
the whole rate eta and not by its schedule alone, as in PyTorch's AdamW:

  w <- w - eta lambda w - (the optimizer's step, of the w before)

Biases and the scales of batch norm, all of rank 0 or 1, do not decay. A shard
has the rank of its variable, and each element decays on its own, so w may be in
any number of shards.
"""

import functools

import tensorflow.compat.v1 as tf


def add(optimizer, learning_rate, weight_decay):
  """Makes `optimizer` decay weights whenever it applies a gradient to them.

  Args:
    optimizer: tf.train.Optimizer whose step does not depend on w.
    learning_rate: float or float32 scalar tensor, eta.
    weight_decay: float, lambda.
  """
  rate = tf.get_static_value(learning_rate)
  optimizer._resource_apply_dense = functools.partial(
    _apply_and_decay,
    optimizer._resource_apply_dense,
    learning_rate if rate is None else float(rate),
    weight_decay,
  )


def decays(variable):
  """Returns whether `variable`, or a shard of one, decays, a bool."""
  return variable.shape.rank > 1


def _apply_and_decay(apply, learning_rate, weight_decay, gradient, variable):
  if not decays(variable):
    return apply(gradient, variable)
  # By now this step has computed its gradient with the old w.
  with tf.control_dependencies([gradient]):
    value = variable.read_value()
    lost = tf.cast(learning_rate * weight_decay, value.dtype) * value
  decayed = variable.assign_sub(lost, read_value=False)
  with tf.control_dependencies([decayed]):
    return apply(gradient, variable)
