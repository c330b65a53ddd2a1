"""The powers of Adam's betas: one name whatever the rule, one message a ps.

Adam keeps beta1^t and beta2^t, two numbers for all variables. TensorFlow names
them after the name scope in which a step is built, that of the rule: a run
could then not go on under another rule. Here those of the center have a name
without a scope, and a checkpoint may have them under any other.

They are on one ps, and TensorFlow reads each of them anew for each variable:
another ps would get two messages for each of its variables in each step. Here
it gets both in one.
"""

import functools
import re

import tensorflow.compat.v1 as tf

from distmnist.logdir import other_names

# The rows of tables that are apart (tables/tables_apart.py) count
# other updates than the rest of the model.
_APART = 'tables_apart/'


def add(optimizer):
  """Makes `optimizer` read its powers once for each device.

  And a checkpoint fits that has them by other names.

  Args:
    optimizer: tf.train.Optimizer; nothing changes if it is no Adam.
  """
  if isinstance(optimizer, tf.train.AdamOptimizer):
    optimizer._create_non_slot_variable = functools.partial(
      _create_known, optimizer._create_non_slot_variable
    )
    powers = _Powers(optimizer)
    optimizer.find_powers = powers.find
    optimizer._prepare = powers.prepare
    optimizer._resource_apply_dense = powers.apply_dense


class _Powers:
  """The powers as an optimizer's apply_gradients uses them."""

  def __init__(self, optimizer):
    """
    Args:
      optimizer: tf.train.AdamOptimizer.
    """
    self._optimizer = optimizer
    self._prepare = optimizer._prepare
    self._apply_dense = optimizer._resource_apply_dense
    self._both, self._on = None, {}

  def prepare(self):
    self._prepare()
    powers = self._optimizer._get_beta_accumulators()
    with tf.device(powers[0].device):
      self._both = tf.stack(powers)
    self._on = {}

  def find(self, device):
    """Returns beta1^t and beta2^t on a device, float32 scalar tensors."""
    if device not in self._on:
      with tf.device(device):
        self._on[device] = tf.unstack(self._both, num=2)
    return self._on[device]

  def apply_dense(self, gradient, variable):
    optimizer = self._optimizer
    find_variables = optimizer._get_beta_accumulators
    optimizer._get_beta_accumulators = lambda: self.find(variable.device)
    try:
      return self._apply_dense(gradient, variable)
    finally:
      optimizer._get_beta_accumulators = find_variables


def share(make_optimizer):
  """Returns a make_optimizer whose center's powers are in no name scope.

  Args:
    make_optimizer: see strategy.Strategy.minimize.
  """

  def make(is_local=False, rate_factor=None):
    optimizer = make_optimizer(is_local=is_local, rate_factor=rate_factor)
    if not is_local:
      optimizer._create_non_slot_variable = functools.partial(
        _create_without_scope, optimizer._create_non_slot_variable
      )
    return optimizer

  return make


def _create_without_scope(create, *args, **kwargs):
  with tf.name_scope(None):
    return create(*args, **kwargs)


def _create_known(create, initial_value, name, colocate_with):
  power = create(initial_value, name, colocate_with)
  other_names.add(power, functools.partial(find_other, name))
  return power


def find_other(name, saved):
  """Returns the name of a power in a checkpoint, or None.

  Args:
    name: str, without a scope.
    saved: iterable of str, the names in the checkpoint.
  """
  found = [x for x in saved if re.fullmatch(rf'(.*/)?{name}(_\d+)?', x)]
  return min(found, key=lambda x: (x.startswith(_APART), x), default=None)
