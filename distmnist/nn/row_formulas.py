"""What an optimizer makes of rows and their slots, given a gradient.

As its dense update, element by element; the sources are those of the optimizers
themselves. In all of these w is the rows, g their gradient and eta the rate.
Optimizers are prepared: what they know is a number, or a tensor made by then.
"""

from collections.abc import Callable
from typing import NamedTuple

import tensorflow.compat.v1 as tf

from distmnist.nn import ftrl, lamb, lars


class Formula(NamedTuple):
  """An optimizer's update.

  Attributes:
    slots: tuple of str, the slots that it keeps, by their names.
    find_rate: callable(optimizer, device of the rows) -> eta, float32 scalar
      tensor or float.
    begin: callable(optimizer, w) -> list of what the slots of rows begin with,
      given the rows: each a float or a float32 tensor [n, width].
    compute: callable(optimizer, eta, g, w, *slots) -> list of the new values of
      w and of the slots; all of these are float32 tensors [n, width].
  """

  slots: tuple
  find_rate: Callable
  begin: Callable
  compute: Callable


def _find_rate(optimizer, device):
  del device
  return optimizer._learning_rate_tensor


def _begin_with_zeros(num_slots):
  return lambda optimizer, w: [0.0] * num_slots


def _sgd(optimizer, eta, g, w):
  del optimizer
  return [w - eta * g]


def _momentum(optimizer, eta, g, w, m):
  mu = optimizer._momentum_tensor
  m = mu * m + g
  return [w - eta * (g + mu * m if optimizer._use_nesterov else m), m]


def _begin_adagrad(optimizer, w):
  del w
  return [optimizer._initial_accumulator_value]


def _adagrad(optimizer, eta, g, w, n):
  del optimizer
  n += tf.square(g)
  return [w - eta * g * tf.math.rsqrt(n), n]


def _begin_rmsprop(optimizer, w):
  del w
  return [optimizer.first_mean_square, 0.0]


def _rmsprop(optimizer, eta, g, w, n, m):
  rho = optimizer._decay_tensor
  n = rho * n + (1 - rho) * tf.square(g)
  step = eta * g * tf.math.rsqrt(n + optimizer._epsilon_tensor)
  m = optimizer._momentum_tensor * m + step
  return [w - m, n, m]


def _find_rate_of_adam(optimizer, device):
  power_1, power_2 = optimizer.find_powers(device)  # See beta_powers.py.
  return optimizer._lr_t * tf.sqrt(1 - power_2) / (1 - power_1)


def _adam(optimizer, eta, g, w, m, v):
  """Kingma and Ba 2015, arXiv 1412.6980, end of section 2."""
  beta_1, beta_2 = optimizer._beta1_t, optimizer._beta2_t
  m = beta_1 * m + (1 - beta_1) * g
  v = beta_2 * v + (1 - beta_2) * tf.square(g)
  return [w - eta * m / (tf.sqrt(v) + optimizer._epsilon_t), m, v]


def _find_rate_of_ftrl(optimizer, device):
  del device
  return optimizer._learning_rate


def _begin_ftrl(optimizer, w):
  del optimizer
  return [ftrl.FIRST_SUM, ftrl.begin_linear(w)]


def _ftrl(optimizer, eta, g, w, n, z):
  """See ftrl.py."""
  before, n = tf.sqrt(n), n + tf.square(g)
  root = tf.sqrt(n)
  z += eta * g - (root - before) * w
  l1 = eta * optimizer._l1
  w = (tf.sign(z) * l1 - z) / (root + 2 * eta * optimizer._l2)
  return [tf.where(tf.abs(z) > l1, w, tf.zeros_like(w)), n, z]


_FORMULAS = {
  tf.train.GradientDescentOptimizer: Formula(
    (), _find_rate, _begin_with_zeros(0), _sgd
  ),
  tf.train.MomentumOptimizer: Formula(
    ('momentum',), _find_rate, _begin_with_zeros(1), _momentum
  ),
  tf.train.AdagradOptimizer: Formula(
    ('accumulator',), _find_rate, _begin_adagrad, _adagrad
  ),
  tf.train.RMSPropOptimizer: Formula(
    ('rms', 'momentum'), _find_rate, _begin_rmsprop, _rmsprop
  ),
  tf.train.AdamOptimizer: Formula(
    ('m', 'v'), _find_rate_of_adam, _begin_with_zeros(2), _adam
  ),
  ftrl.Ftrl: Formula(
    ('accum', 'linear'), _find_rate_of_ftrl, _begin_ftrl, _ftrl
  ),
}


def find(optimizer):
  """Returns the Formula of a tf.train.Optimizer of named_optimizers.py.

  None for lars and lamb, whose steps need whole tables.
  """
  if isinstance(optimizer, lars.Lars | lamb.Lamb):
    return None
  return next(f for kind, f in _FORMULAS.items() if isinstance(optimizer, kind))
