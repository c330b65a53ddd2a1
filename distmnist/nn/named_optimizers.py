"""The optimizers by name: TensorFlow's and those of this package."""

import tensorflow.compat.v1 as tf
from absl import flags

from distmnist.nn import ftrl, lamb, lars

_EPSILON = flags.DEFINE_float(
  'epsilon',
  None,
  'adam, adamw, rmsprop: what keeps a step finite where gradients are 0. It is '
  'added to the root of their mean square, by default 1e-8, or with rmsprop to '
  'the mean square itself, by default 1e-10.',
  lower_bound=0,
)
_FIRST_MEAN_SQUARE = flags.DEFINE_float(
  'first_mean_square',
  1,
  'rmsprop: the mean square of the gradients before the first step. 1 is '
  "TensorFlow 1's; Keras and PyTorch begin with 0.",
  lower_bound=0,
)
_FTRL_L1 = flags.DEFINE_float(
  'ftrl_l1',
  0,
  'L1 penalty of --optimizer=ftrl, by which weights become exactly 0.',
  lower_bound=0,
)
_FTRL_L2 = flags.DEFINE_float(
  'ftrl_l2', 0, 'L2 penalty of --optimizer=ftrl.', lower_bound=0
)
_TRUST_COEFFICIENT = flags.DEFINE_float(
  'trust_coefficient',
  0.001,
  'eta of --optimizer=lars: the rate of a layer is --learning_rate times this '
  'times the norm of its weights over that of their gradient.',
  lower_bound=0,
)


def own_from_flags(name):
  """Returns `own` of make (dict), as the flags say."""
  if name == 'ftrl':
    return {'l1': _FTRL_L1.value, 'l2': _FTRL_L2.value}
  if name == 'lars':
    return {'trust_coefficient': _TRUST_COEFFICIENT.value}
  own = {}
  if name in ('adam', 'adamw', 'rmsprop') and _EPSILON.value is not None:
    own['epsilon'] = _EPSILON.value
  if name == 'rmsprop':
    own['first_mean_square'] = _FIRST_MEAN_SQUARE.value
  return own


def make(name, momentum, common, own):
  """Returns a new tf.train.Optimizer.

  Args:
    name: str, one of optimizers.OPTIMIZERS.
    momentum: float, for those that have one.
    common: dict, keyword arguments of any optimizer.
    own: dict, those of this one only, floats: l1 and l2 of ftrl,
      trust_coefficient of lars, epsilon of adam, adamw and rmsprop,
      first_mean_square of rmsprop. What is missing is as by default.
  """
  if name == 'sgd':
    return tf.train.GradientDescentOptimizer(**common)
  if name in ('momentum', 'nesterov'):
    return tf.train.MomentumOptimizer(
      momentum=momentum, use_nesterov=name == 'nesterov', **common
    )
  if name in ('adam', 'adamw'):
    return tf.train.AdamOptimizer(**common, **own)
  if name == 'adagrad':
    return tf.train.AdagradOptimizer(**common)
  if name == 'ftrl':
    return ftrl.Ftrl(**common, **own)
  if name == 'lars':
    return lars.Lars(momentum=momentum, **common, **own)
  if name == 'lamb':
    return lamb.Lamb(**common)
  return _RmsProp(momentum=momentum, **common, **own)


class _RmsProp(tf.train.RMSPropOptimizer):
  """TensorFlow's, which begins with any mean square."""

  def __init__(self, first_mean_square=1.0, **settings):
    super().__init__(**settings)
    self.first_mean_square = first_mean_square

  def _create_slots(self, var_list):
    for variable in var_list:
      self._get_or_make_slot_with_initializer(
        variable,
        tf.constant_initializer(self.first_mean_square),
        variable.shape,
        variable.dtype.base_dtype,
        'rms',
        self._name,
      )
    super()._create_slots(var_list)
