"""FTRL-proximal, whose L1 penalty keeps weights at exactly 0.

McMahan et al. 2013, "Ad click prediction: a view from the trenches" (KDD),
algorithm 1, element by element; n and z are sums kept for the weight w:

  sigma = sqrt(n + g^2) - sqrt(n);  n <- n + g^2
  z <- z + eta g - sigma w
  w <- -(z - sign(z) eta lambda1) / (sqrt(n) + 2 eta lambda2) if |z| > eta
       lambda1, else 0

Two things differ from the paper, which has a constant rate eta and weights
that start at 0. z includes eta, so that a schedule changes future steps but not
past ones. n starts at 0.1 and z at -sqrt(n) w, so that random initial weights
stay as they are until gradients move them: with lambda1 = lambda2 = 0 this is
Adagrad.
"""

import math

import tensorflow.compat.v1 as tf

# What n begins with.
FIRST_SUM = 0.1  # As in tf.train.AdagradOptimizer.


class Ftrl(tf.train.Optimizer):
  """FTRL-proximal; its slots are `accum` (n) and `linear` (z)."""

  def __init__(self, learning_rate, l1=0.0, l2=0.0, use_locking=False):
    """
    Args:
      learning_rate: float or float32 scalar tensor, eta.
      l1, l2: float, lambda1 and lambda2.
      use_locking: bool, whether an update locks its variable.
    """
    super().__init__(use_locking, 'Ftrl')
    self._learning_rate = learning_rate
    self._l1, self._l2 = l1, l2

  def _create_slots(self, var_list):
    for variable in var_list:
      self._get_or_make_slot_with_initializer(
        variable,
        tf.constant_initializer(FIRST_SUM),
        variable.shape,
        variable.dtype.base_dtype,
        'accum',
        self._name,
      )
      self._get_or_make_slot_with_initializer(
        variable,
        _make_linear_initializer(variable),
        variable.shape,
        variable.dtype.base_dtype,
        'linear',
        f'{self._name}_1',
      )

  def _resource_apply_dense(self, grad, var):
    return tf.raw_ops.ResourceApplyFtrl(
      var=var.handle,
      accum=self.get_slot(var, 'accum').handle,
      linear=self.get_slot(var, 'linear').handle,
      grad=grad,
      lr=tf.cast(self._learning_rate, grad.dtype),
      l1=self._l1,
      l2=self._l2,
      lr_power=-0.5,
      use_locking=self._use_locking,
      multiply_linear_by_lr=True,
    )


def _make_linear_initializer(variable):
  def initialize(shape, dtype=None, partition_info=None):
    del shape, dtype, partition_info
    # If both are initialised at once, this is the value that w will have.
    value = tf.cond(
      variable.is_initialized(),
      variable.read_value,
      lambda: variable.initial_value,
    )
    return begin_linear(value)

  return initialize


def begin_linear(weights):
  """Returns what z begins with beside `weights`, a tensor."""
  return -math.sqrt(FIRST_SUM) * weights
