"""An accumulator of any float dtype, which adds up as sums.py says."""

import tensorflow.compat.v1 as tf

from distmnist.transport import sums


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
    super().__init__(sums.choose_dtype(dtype), shape, shared_name)

  def apply_grad(self, grad, local_step=0, name=None):
    grad = tf.cast(grad, self.dtype)
    return super().apply_grad(grad, local_step, name)

  def take_grad(self, num_required, name=None):
    mean = super().take_grad(num_required, name)
    return tf.cast(mean, self._given_dtype)
