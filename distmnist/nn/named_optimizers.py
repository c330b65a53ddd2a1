"""The optimizers by name: TensorFlow's and those of this package."""

import tensorflow.compat.v1 as tf

from distmnist.nn import ftrl, lamb, lars


def make(name, momentum, common, own):
  """Returns a new tf.train.Optimizer.

  Args:
    name: str, one of optimizers.OPTIMIZERS.
    momentum: float, for those that have one.
    common, own: dicts, keyword arguments of any optimizer and of this one only.
  """
  if name == 'sgd':
    return tf.train.GradientDescentOptimizer(**common)
  if name in ('momentum', 'nesterov'):
    return tf.train.MomentumOptimizer(
      momentum=momentum, use_nesterov=name == 'nesterov', **common
    )
  if name in ('adam', 'adamw'):
    return tf.train.AdamOptimizer(**common)
  if name == 'adagrad':
    return tf.train.AdagradOptimizer(**common)
  if name == 'ftrl':
    return ftrl.Ftrl(**common, **own)
  if name == 'lars':
    return lars.Lars(momentum=momentum, **common, **own)
  if name == 'lamb':
    return lamb.Lamb(**common)
  return tf.train.RMSPropOptimizer(momentum=momentum, **common)
