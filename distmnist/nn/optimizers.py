"""Optimizers and gradient clipping, by flags."""

import tensorflow.compat.v1 as tf
from absl import flags

from distmnist.nn import formulas, schedules
from distmnist.nn import optimizer as optimizer_lib
from distmnist.tables import tables_apart

# Those of formulas.KINDS: a launcher reads them here without TensorFlow.
OPTIMIZERS = (
  'sgd',
  'momentum',
  'nesterov',
  'adam',
  'adamw',
  'adagrad',
  'rmsprop',
  'ftrl',
  'lars',
  'lamb',
)

# As in PyTorch's AdamW and the LAMB authors' program; 0 for the others.
_DECAYS = {'adamw': 0.01, 'lamb': 0.01}

_OPTIMIZER = flags.DEFINE_enum(
  'optimizer', 'sgd', OPTIMIZERS, 'The optimizer that applies the gradients.'
)
_LEARNING_RATE = flags.DEFINE_float(
  'learning_rate', 0.01, 'Learning rate at step 0.', lower_bound=0
)
_LOCAL_OPTIMIZER = flags.DEFINE_enum(
  'local_optimizer',
  None,
  OPTIMIZERS,
  "The optimizer of a worker's own copy, under a strategy that has local "
  'steps. By default --optimizer.',
)
_LOCAL_LEARNING_RATE = flags.DEFINE_float(
  'local_learning_rate',
  None,
  'Learning rate of --local_optimizer at step 0, under --lr_schedule. By '
  'default --learning_rate.',
  lower_bound=0,
)
_MOMENTUM = flags.DEFINE_float(
  'momentum',
  0.9,
  'momentum, nesterov, rmsprop, lars: the momentum; 0 for none.',
  lower_bound=0,
  upper_bound=1,
)
_WEIGHT_DECAY = flags.DEFINE_float(
  'weight_decay',
  None,
  'Decoupled weight decay: each update also shrinks a weight by this fraction '
  'times the learning rate, except for biases and whatever else has rank 0 or '
  '1. By default 0.01 with --optimizer=adamw and lamb, else 0. lars and lamb '
  'include it in what they scale.',
  lower_bound=0,
)
_DECAY_BIASES = flags.DEFINE_bool(
  'decay_biases',
  False,
  'sgd, momentum, nesterov, adam, adamw, adagrad, rmsprop: --weight_decay also '
  "shrinks what has rank 0 or 1, as in Keras's and PyTorch's optimizers.",
)
_CLIP_NORM = flags.DEFINE_float(
  'clip_norm',
  None,
  "Scale a worker's gradients down to this global L2 norm, above 0, where "
  'they exceed it. By default they are left as they are.',
  lower_bound=0,
)
flags.register_validator(
  'clip_norm',
  lambda norm: norm is None or norm > 0,
  'expected a norm above 0: 0 would make every gradient 0. Leave the flag out '
  'to clip nothing',
)
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
_USE_LOCKING = flags.DEFINE_bool(
  'use_locking',
  False,
  'Lock a variable while it is updated. Without it two asynchronous updates '
  'of one shard may interleave, except those of rows of sparse tables.',
)


def make_optimizer(
  name,
  learning_rate,
  momentum=0.9,
  weight_decay=0.0,
  clip_norm=None,
  decay_biases=False,
  use_locking=False,
  is_rate_read_first=False,
  has_scope=True,
  **own,
):
  """Returns a new optimizer.Optimizer, a tf.train.Optimizer.

  Args:
    name: one of OPTIMIZERS.
    learning_rate: float or float32 scalar tensor.
    momentum: float in 0..1, for momentum, nesterov, rmsprop and lars.
    weight_decay: float, for all but ftrl.
    clip_norm, decay_biases, use_locking, is_rate_read_first, has_scope: see
      optimizer.Optimizer.
    **own: what only some have; see formulas.make.
  """
  formula = formulas.make(name, momentum, weight_decay, **own)
  if isinstance(formula, formulas.LayerFormula):
    weight_decay = 0  # It is part of the formula.
  return optimizer_lib.Optimizer(
    formula,
    learning_rate,
    clip_norm=clip_norm,
    weight_decay=weight_decay,
    decay_biases=decay_biases,
    use_locking=use_locking,
    is_rate_read_first=is_rate_read_first,
    has_scope=has_scope,
  )


def from_flags(
  global_step,
  batches_per_gradient=1,
  epochs_per_update=1.0,
  last_step=None,
  build_rate=None,
):
  """Returns (make_optimizer, learning_rate).

  Args:
    global_step: int64 scalar variable.
    batches_per_gradient, epochs_per_update, last_step: see
      schedules.from_flags.
    build_rate: callable(step, epoch) -> float32 scalar tensor, a problem's own
      rate in place of the flags', or None if it has none; see
      problem.Problem.learning_rate. None for the flags'.

  Returns:
    make_optimizer: callable(is_local=False, rate_factor=None, is_apart=False)
      -> a new tf.train.Optimizer; see strategy.Strategy.minimize. is_apart:
      bool, whether it is for tables_apart.py.
    learning_rate: float32 scalar tensor, the center's.
  """
  schedule = schedules.from_flags(
    batches_per_gradient, epochs_per_update, last_step
  )

  def build(rate):
    if build_rate is not None:
      step = tf.convert_to_tensor(global_step)
      epoch = tf.cast(step, tf.float32) * epochs_per_update
      own = build_rate(step, epoch)
      if own is not None:
        return own
    return schedule.build(global_step, rate)

  # The center's rate is computed on its ps: an update that holds the center's
  # lock must not wait for a number from the worker.
  with tf.device(global_step.device):
    learning_rate = build(_LEARNING_RATE.value)

  def make(is_local=False, rate_factor=None, is_apart=False):
    name, rate = _OPTIMIZER.value, learning_rate
    if is_local:
      name, local_rate = _local_name(), _LOCAL_LEARNING_RATE.value
      rate = build(_LEARNING_RATE.value if local_rate is None else local_rate)
    if rate_factor is not None:
      rate *= rate_factor
    return make_optimizer(
      name,
      rate,
      momentum=_MOMENTUM.value,
      weight_decay=_weight_decay_of(name),
      clip_norm=_CLIP_NORM.value,
      decay_biases=_DECAY_BIASES.value,
      use_locking=_USE_LOCKING.value,
      is_rate_read_first=is_local,
      has_scope=is_local or is_apart,
      **_own_of(name),
    )

  return make, learning_rate


def _own_of(name):
  """Returns `own` of make_optimizer, a dict, as the flags say."""
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


def _weight_decay_of(name):
  if _WEIGHT_DECAY.value is None:
    return _DECAYS.get(name, 0)
  return _WEIGHT_DECAY.value


def base_rate_from_flags():
  """Returns (--optimizer, --learning_rate); 'sgd' has no weight decay."""
  return _describe(_OPTIMIZER.value), _LEARNING_RATE.value


def find_used(strategy):
  """Returns the names (set of str) of the optimizers that move something.

  Args:
    strategy: strategy.Strategy.
  """
  used = set()
  if strategy.has_center_optimizer or tables_apart.is_wanted():
    used.add(_OPTIMIZER.value)
  if strategy.has_local_steps:
    used.add(_local_name())
  return used


def local_name_from_flags():
  """Returns the optimizer of a worker's copy; 'sgd' has no weight decay."""
  return _describe(_local_name())


def _local_name():
  return _LOCAL_OPTIMIZER.value or _OPTIMIZER.value


def _describe(name):
  return f'{name} with --weight_decay' if _weight_decay_of(name) else name
