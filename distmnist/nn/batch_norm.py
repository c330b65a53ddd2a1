"""Batch normalisation, and the averages that it keeps for evaluation."""

from __future__ import annotations

import tensorflow.compat.v1 as tf

from distmnist.transport import model_state

_BATCH_NORM_DECAY = 0.9
_BATCH_NORM_EPSILON = 1e-5


def describe_averages(rule: str, has_local_steps: bool) -> str | None:
  """Returns what a user should know of batch norm in this graph, or None.

  Args:
    rule: the name of the update rule.
    has_local_steps: whether workers take steps on their own copies.
  """
  if not (has_local_steps and tf.get_collection(tf.GraphKeys.UPDATE_OPS)):
    return None
  return (
    f'batch norm under {rule}: its moving averages are of the weights of the'
    " workers' copies, not of those of the center, which is evaluated: the test"
    ' accuracy may be lower than that of other rules'
  )


def batch_norm(
  inputs: tf.Tensor, name: str, is_training: bool, first_gamma: float = 1.0
) -> tf.Tensor:
  """Batch normalisation over all but the last axis, [batch, h, w, c].

  Ioffe and Szegedy 2015, arXiv 1502.03167. Per channel, with eps = 1e-5:

    y = gamma (x - mean) / sqrt(variance + eps) + beta
    moving <- moving - (1 - 0.9) (moving - that of the batch)

  In training, mean and variance are those of this worker's batch; otherwise
  they are the moving averages. The moving variance takes in n / (n - 1) times
  the batch's, where n is the number of values per channel in the batch.

  The averages are variables that a model updates itself, and move as all of
  these: see transport/model_state.py. So with N workers in lock-step they move
  once a global step, by the mean of the workers' statistics. That is not the
  statistics of the N batches together: the variance between their means is
  missing.

  Args:
    inputs: float32 [batch, h, w, c].
    first_gamma: the initial value of gamma.
  """
  channels = [inputs.shape.as_list()[-1]]
  with tf.variable_scope(name) as scope:
    gamma, beta = (
      tf.get_variable(key, channels, initializer=tf.constant_initializer(value))
      for key, value in (('gamma', first_gamma), ('beta', 0.0))
    )
    # Each shard would cost one more message and update for a few bytes.
    scope.set_partitioner(None)
    moving = [
      tf.get_variable(
        key,
        channels,
        initializer=tf.constant_initializer(value),
        trainable=False,
      )
      for key, value in (('moving_mean', 0.0), ('moving_variance', 1.0))
    ]
    averages = {}
    if not is_training:
      averages = dict(zip(('mean', 'variance'), moving, strict=True))
    outputs, *of_batch = tf.nn.fused_batch_norm(
      inputs,
      gamma,
      beta,
      epsilon=_BATCH_NORM_EPSILON,
      is_training=is_training,
      **averages,
    )
    if is_training:
      for variable, value in zip(moving, of_batch, strict=True):
        old = model_state.read(variable)
        change = (old - value) * (1 - _BATCH_NORM_DECAY)
        model_state.change(variable, old - change)
    return outputs


def after_updates(train_op: tf.Tensor) -> tf.Tensor:
  """Returns a `train_op` that also waits for the UPDATE_OPS."""
  updates = tf.get_collection(tf.GraphKeys.UPDATE_OPS)
  if not updates:
    return train_op
  # The group reports all updates of a ps in one message.
  with tf.control_dependencies([train_op, tf.group(*updates)]):
    return tf.identity(train_op)
