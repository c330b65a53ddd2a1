"""Optimizers and gradient clipping, by flags."""

import functools

import tensorflow.compat.v1 as tf
from absl import flags

from distmnist.nn import schedules

OPTIMIZERS = ('sgd', 'momentum', 'nesterov', 'adam', 'adagrad', 'rmsprop')

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
  'Momentum of --optimizer=momentum, nesterov and rmsprop (0 for none).',
  lower_bound=0,
  upper_bound=1,
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
  'of one shard may interleave.',
)


def make_optimizer(
  name, learning_rate, momentum=0.9, clip_norm=None, use_locking=False
):
  """Returns a new tf.train.Optimizer.

  Args:
    name: one of OPTIMIZERS.
    learning_rate: float or float32 scalar tensor.
    momentum: float in 0..1, for momentum, nesterov and rmsprop.
    clip_norm: float or None; compute_gradients clips by this global L2 norm.
    use_locking: bool, whether an update locks its variable.
  """
  common = {'learning_rate': learning_rate, 'use_locking': use_locking}
  if name == 'sgd':
    optimizer = tf.train.GradientDescentOptimizer(**common)
  elif name in ('momentum', 'nesterov'):
    optimizer = tf.train.MomentumOptimizer(
      momentum=momentum, use_nesterov=name == 'nesterov', **common
    )
  elif name == 'adam':
    optimizer = tf.train.AdamOptimizer(**common)
  elif name == 'adagrad':
    optimizer = tf.train.AdagradOptimizer(**common)
  else:
    optimizer = tf.train.RMSPropOptimizer(momentum=momentum, **common)
  optimizer._prepare = functools.partial(
    _prepare_numbers, optimizer, optimizer._prepare
  )
  optimizer._finish = functools.partial(_finish_by_device, optimizer._finish)
  if clip_norm is not None:
    optimizer.compute_gradients = functools.partial(
      _compute_clipped, optimizer.compute_gradients, clip_norm
    )
  return optimizer


def _prepare_numbers(optimizer, prepare):
  """Does `prepare`, and turns the constants that it has made into numbers.

  As a tensor, Adam's beta is made where apply_gradients was called: a worker
  would send it to each ps in each step, and a message costs more than many an
  update. Of a number each update makes a constant beside its variable.
  """
  prepare()
  for name, value in vars(optimizer).items():
    number = tf.get_static_value(value) if tf.is_tensor(value) else None
    if number is not None:
      setattr(optimizer, name, float(number))


def _finish_by_device(finish, update_ops, name):
  """Does `finish`, to which the updates of a device are one op.

  What waits for them on another ps, as Adam's powers do, would else be sent a
  message by each.
  """
  devices = {}
  for op in update_ops:
    devices.setdefault(op.device, []).append(op)
  grouped = []
  for device, ops in devices.items():
    with tf.device(device), tf.control_dependencies(ops):
      grouped.append(tf.no_op('updated'))
  return finish(grouped, name)


def _compute_clipped(compute_gradients, clip_norm, *args, **kwargs):
  gradients, variables = zip(*compute_gradients(*args, **kwargs), strict=True)
  clipped, _ = tf.clip_by_global_norm(gradients, clip_norm)
  return list(zip(clipped, variables, strict=True))


def from_flags(global_step, num_workers, epochs_per_update=1.0):
  """Returns (make_optimizer, learning_rate).

  Args:
    global_step: int64 scalar variable.
    num_workers: int, the default of --lr_scale.
    epochs_per_update: float, the part of the data set that one global step
      takes in; for --lr_schedule_unit=epochs.

  Returns:
    make_optimizer: callable(is_local=False, rate_factor=None) -> a new
      tf.train.Optimizer; see strategy.Strategy.minimize.
    learning_rate: float32 scalar tensor, that of the center.
  """
  schedule = schedules.from_flags(num_workers, epochs_per_update)
  # The center's rate is made on its ps: an update that holds the lock of the
  # center must not wait for a number of the worker's.
  with tf.device(global_step.device):
    learning_rate = schedule.build(global_step, _LEARNING_RATE.value)

  def make(is_local=False, rate_factor=None):
    name, rate = _OPTIMIZER.value, learning_rate
    if is_local:
      name, local_rate = local_name_from_flags(), _LOCAL_LEARNING_RATE.value
      rate = schedule.build(
        global_step, _LEARNING_RATE.value if local_rate is None else local_rate
      )
    if rate_factor is not None:
      rate *= rate_factor
    return make_optimizer(
      name,
      rate,
      momentum=_MOMENTUM.value,
      clip_norm=_CLIP_NORM.value,
      use_locking=_USE_LOCKING.value,
    )

  return make, learning_rate


def base_rate_from_flags():
  """Returns (--optimizer, --learning_rate), for a rule that has its own."""
  return _OPTIMIZER.value, _LEARNING_RATE.value


def local_name_from_flags():
  """Returns the name of the optimizer of a worker's own copy."""
  return _LOCAL_OPTIMIZER.value or _OPTIMIZER.value
