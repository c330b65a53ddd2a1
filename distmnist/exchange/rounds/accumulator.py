"""An accumulator of any float dtype.

TensorFlow 2.21 has none for bfloat16: such gradients are added up in float32.
"""

import tensorflow.compat.v1 as tf


class Accumulator(tf.ConditionalAccumulator):
  """Takes tensors of its dtype and gives their mean, of the same dtype."""

  def __init__(self, dtype, shape, shared_name):
    """
    Args:
      dtype: tf.DType.
      shape: list of int or tf.TensorShape.
      shared_name: str, the same for all workers.
    """
    self._given_dtype = dtype
    super().__init__(choose_dtype(dtype), shape, shared_name)

  def apply_grad(self, grad, local_step=0, name=None):
    grad = tf.cast(grad, self.dtype)
    return super().apply_grad(grad, local_step, name)

  def take_grad(self, num_required, name=None):
    mean = super().take_grad(num_required, name)
    return tf.cast(mean, self._given_dtype)


def choose_dtype(dtype):
  """Returns the tf.DType in which tensors of `dtype` are added up."""
  return tf.float32 if dtype == tf.bfloat16 else dtype
