"""Optimizers and gradient clipping, by flags."""

import tensorflow.compat.v1 as tf
from absl import flags

from distmnist.nn import (
  beta_powers,
  clipping,
  gradient_accumulation,
  lean_updates,
  named_optimizers,
  schedules,
  sparse_updates,
  whole_gradients,
)
from distmnist.nn import weight_decay as weight_decay_lib
from distmnist.tables import tables_apart

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
  clip_norm=None,
  use_locking=False,
  weight_decay=0,
  decay_biases=False,
  **own,
):
  """Returns a new tf.train.Optimizer.

  Args:
    name: one of OPTIMIZERS.
    learning_rate: float or float32 scalar tensor.
    momentum: float in 0..1, for momentum, nesterov, rmsprop and lars.
    clip_norm: float or None; compute_gradients clips by this global L2 norm.
    use_locking: bool, whether an update locks its variable.
    weight_decay: float, for all but ftrl; see weight_decay.py.
    decay_biases: bool, for all but ftrl, lars and lamb, likewise.
    **own: what only some have; see named_optimizers.make.
  """
  common = {'learning_rate': learning_rate, 'use_locking': use_locking}
  has_decay = name in ('lars', 'lamb')
  if has_decay:
    common['weight_decay'] = weight_decay
  optimizer = named_optimizers.make(name, momentum, common, own)
  lean_updates.make_lean(optimizer)
  beta_powers.add(optimizer)
  sparse_updates.add(optimizer)
  if weight_decay and not has_decay:
    weight_decay_lib.add(
      optimizer, learning_rate, weight_decay, 0 if decay_biases else 2
    )
  whole_gradients.add(optimizer)
  # Clipping acts on the mean over the slices of a batch.
  gradient_accumulation.add(optimizer)
  if clip_norm is not None:
    clipping.add(optimizer, clip_norm)
  return optimizer


def from_flags(global_step, batches_per_gradient=1, epochs_per_update=1.0):
  """Returns (make_optimizer, learning_rate).

  Args:
    global_step: int64 scalar variable.
    batches_per_gradient, epochs_per_update: see schedules.from_flags.

  Returns:
    make_optimizer: callable(is_local=False, rate_factor=None) -> a new
      tf.train.Optimizer; see strategy.Strategy.minimize.
    learning_rate: float32 scalar tensor, the center's.
  """
  schedule = schedules.from_flags(batches_per_gradient, epochs_per_update)
  # The center's rate is computed on its ps: an update that holds the center's
  # lock must not wait for a number from the worker.
  with tf.device(global_step.device):
    learning_rate = schedule.build(global_step, _LEARNING_RATE.value)

  def make(is_local=False, rate_factor=None):
    name, rate = _OPTIMIZER.value, learning_rate
    if is_local:
      name, local_rate = _local_name(), _LOCAL_LEARNING_RATE.value
      rate = schedule.build(
        global_step, _LEARNING_RATE.value if local_rate is None else local_rate
      )
    if rate_factor is not None:
      rate *= rate_factor
    optimizer = make_optimizer(
      name,
      rate,
      momentum=_MOMENTUM.value,
      clip_norm=_CLIP_NORM.value,
      use_locking=_USE_LOCKING.value,
      weight_decay=_weight_decay_of(name),
      decay_biases=_DECAY_BIASES.value,
      **named_optimizers.own_from_flags(name),
    )
    return schedules.read_first(optimizer, rate) if is_local else optimizer

  return make, learning_rate


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
