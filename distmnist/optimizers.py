"""Optimizers, learning-rate schedules and gradient clipping, by flags.

A step t of a schedule is a global_step: an update of the center variables.
With --lr_schedule_unit=epochs the flags are in passes over the data set, and
are turned into steps here: a schedule is then the same work under every rule.
"""

import functools
import math

import tensorflow.compat.v1 as tf
from absl import flags

from distmnist import cli

OPTIMIZERS = ('sgd', 'momentum', 'nesterov', 'adam', 'adagrad', 'rmsprop')
SCHEDULES = ('constant', 'exponential', 'step', 'linear_scaling')

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
  'Its learning rate at step 0; the schedule is the same. By default '
  '--learning_rate.',
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
_LR_SCHEDULE = flags.DEFINE_enum(
  'lr_schedule',
  'constant',
  SCHEDULES,
  'How the learning rate changes with the global step.',
)
_LR_SCHEDULE_UNIT = flags.DEFINE_enum(
  'lr_schedule_unit',
  'steps',
  ['steps', 'epochs'],
  'What --lr_decay_steps, --lr_boundaries and --lr_warmup_steps count. steps: '
  'global steps, as in TensorFlow, of which one takes in more batches under '
  'some strategies than under others; epochs: passes of all workers together '
  'over the data set.',
)
_LR_DECAY_STEPS = flags.DEFINE_float(
  'lr_decay_steps',
  1000,
  'exponential: the steps, or epochs by --lr_schedule_unit, in which the rate '
  'falls by --lr_decay_rate.',
  lower_bound=0,
)
_LR_DECAY_RATE = flags.DEFINE_float(
  'lr_decay_rate',
  0.96,
  'exponential: factor every --lr_decay_steps; step: factor at each boundary.',
  lower_bound=0,
)
_LR_BOUNDARIES = flags.DEFINE_list(
  'lr_boundaries',
  [],
  'step: the global steps, or epochs by --lr_schedule_unit, at which the rate '
  'falls.',
)
_LR_WARMUP_STEPS = flags.DEFINE_float(
  'lr_warmup_steps',
  500,
  'linear_scaling: the steps, or epochs by --lr_schedule_unit, over which the '
  'rate rises to its full value.',
  lower_bound=0,
)
_LR_SCALE = flags.DEFINE_float(
  'lr_scale',
  None,
  'linear_scaling: the full rate over --learning_rate; by default the number '
  'of workers.',
  lower_bound=0,
)


def build_learning_rate(
  step,
  learning_rate,
  schedule='constant',
  decay_steps=1000,
  decay_rate=0.96,
  boundaries=(),
  warmup_steps=500,
  scale=1.0,
):
  """Returns the learning rate at `step`, a float32 scalar tensor.

  Args:
    step: int64 scalar tensor, the updates of the center so far, t below.
    learning_rate: float, eta, the rate at step 0.
    schedule: one of SCHEDULES:
      constant: eta.
      exponential: eta * decay_rate ** (t / decay_steps).
      step: eta * decay_rate ** (the number of boundaries <= t).
      linear_scaling: eta + (scale * eta - eta) * min(1, t / warmup_steps), the
        gradual warm-up of Goyal et al. 2017, arXiv 1706.02677, section 2.2.
    decay_steps, warmup_steps: float above 0, in global steps.
    decay_rate, scale: float factors.
    boundaries: ascending ints, in global steps.
  """
  with tf.name_scope('learning_rate'):
    rate = tf.constant(learning_rate, tf.float32)
    t = tf.cast(step, tf.float32)
    if schedule == 'exponential':
      return rate * decay_rate ** (t / decay_steps)
    if schedule == 'step':
      passed = [
        tf.cast(step >= boundary, tf.float32) for boundary in boundaries
      ]
      return rate * decay_rate ** tf.add_n(passed)
    if schedule == 'linear_scaling':
      return rate * (1 + (scale - 1) * tf.minimum(1.0, t / warmup_steps))
    return rate


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


def check_flags():
  """Checks the flags before anything is built; raises cli.UsageError."""
  unit = _LR_SCHEDULE_UNIT.value
  parse_boundaries(_LR_BOUNDARIES.value, _LR_SCHEDULE.value, unit)
  for flag in (_LR_DECAY_STEPS, _LR_WARMUP_STEPS):
    given = f'--{flag.name}={flag.value:g}'
    if unit == 'steps' and (flag.value < 1 or flag.value % 1):
      raise cli.UsageError(
        f'{given}: expected whole global steps, 1 or more; '
        '--lr_schedule_unit=epochs takes parts of an epoch'
      )
    if not 0 < flag.value < math.inf:
      raise cli.UsageError(f'{given}: expected a number of epochs above 0')


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
  scale = num_workers if _LR_SCALE.value is None else _LR_SCALE.value
  unit = _LR_SCHEDULE_UNIT.value
  steps_per_unit = 1 / epochs_per_update if unit == 'epochs' else 1
  boundaries = [
    # A whole number is met, whatever its division has lost.
    math.ceil(boundary * steps_per_unit - 1e-6)
    for boundary in parse_boundaries(
      _LR_BOUNDARIES.value, _LR_SCHEDULE.value, unit
    )
  ]

  def build_rate(rate):
    return build_learning_rate(
      global_step,
      rate,
      _LR_SCHEDULE.value,
      decay_steps=_LR_DECAY_STEPS.value * steps_per_unit,
      decay_rate=_LR_DECAY_RATE.value,
      boundaries=boundaries,
      warmup_steps=_LR_WARMUP_STEPS.value * steps_per_unit,
      scale=scale,
    )

  # The center's rate is made on its ps: an update that holds the lock of the
  # center must not wait for a number of the worker's.
  with tf.device(global_step.device):
    learning_rate = build_rate(_LEARNING_RATE.value)

  def make(is_local=False, rate_factor=None):
    name, rate = _OPTIMIZER.value, learning_rate
    if is_local:
      name, local_rate = local_name_from_flags(), _LOCAL_LEARNING_RATE.value
      rate = build_rate(
        _LEARNING_RATE.value if local_rate is None else local_rate
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


def parse_boundaries(words, schedule, unit='steps'):
  """Returns the numbers in `words`, list of str; checks that they ascend.

  Args:
    words: list of str.
    schedule: one of SCHEDULES.
    unit: 'steps', whole numbers, or 'epochs', numbers of 0 or more.

  Raises:
    cli.UsageError: not ascending numbers, or none where needed.
  """
  make, name, example = int, 'global steps', '1000,2000'
  if unit == 'epochs':
    make, name, example = float, 'epochs', '10,20.5'
  try:
    boundaries = [make(word) for word in words]
  except ValueError:
    boundaries = None
  if (
    boundaries is None
    or boundaries != sorted(set(boundaries))
    or not all(0 <= b < math.inf for b in boundaries)
  ):
    raise cli.UsageError(
      f'--lr_boundaries={",".join(words)}: expected ascending {name}, such as '
      f'{example}'
    )
  if schedule == 'step' and not boundaries:
    raise cli.UsageError(f'--lr_schedule=step needs --lr_boundaries={example}')
  return boundaries
