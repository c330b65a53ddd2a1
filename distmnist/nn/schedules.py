"""Learning-rate schedules, by flags.

A step t of a schedule is a global_step: an update of the center variables.
With --lr_schedule_unit=epochs the flags are in the epochs of --epochs and are
converted to steps here, so a schedule covers the same work under every rule.
"""

import math
from typing import NamedTuple

import tensorflow.compat.v1 as tf
from absl import flags

from distmnist.common import cli

SCHEDULES = ('constant', 'exponential', 'step', 'linear_scaling')

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
  'global steps, as in TensorFlow, one of which takes in more batches under '
  'some strategies than under others; epochs: those of --epochs.',
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
  'exponential, step: what the rate is multiplied by every --lr_decay_steps, '
  'or at each of --lr_boundaries.',
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
  'linear_scaling: the full rate over --learning_rate; by default how many '
  'batches of --batch_size the gradient of an update is the mean of: '
  '--gradient_accumulation times the GPUs of a worker times, in lock-step, the '
  'workers or --replicas_to_aggregate.',
  lower_bound=0,
)


# A whole number as a float, too, unlike 2^63 - 1.
_LAST_STEP = 2**62


class Schedule(NamedTuple):
  """How a rate eta changes with the step t.

  Attributes:
    name: one of SCHEDULES:
      constant: eta.
      exponential: eta * decay_rate ** (t / decay_steps).
      step: eta * decay_rate ** (the number of boundaries <= t).
      linear_scaling: eta + (scale * eta - eta) * min(1, t / warmup_steps), the
        gradual warm-up of Goyal et al. 2017, arXiv 1706.02677, section 2.2.
    decay_steps, warmup_steps: float above 0, in global steps.
    decay_rate, scale: float factors.
    boundaries: ascending ints, in global steps.
  """

  name: str = 'constant'
  decay_steps: float = 1000
  decay_rate: float = 0.96
  boundaries: tuple | list = ()
  warmup_steps: float = 500
  scale: float = 1.0

  def build(self, step, learning_rate):
    """Returns the learning rate at `step`, a float32 scalar tensor.

    Args:
      step: int64 scalar tensor, the updates of the center so far.
      learning_rate: float, the rate at step 0.
    """
    with tf.name_scope('learning_rate'):
      rate = tf.constant(learning_rate, tf.float32)
      t = tf.cast(step, tf.float32)
      if self.name == 'exponential':
        return rate * self.decay_rate ** (t / self.decay_steps)
      if self.name == 'step':
        passed = [
          tf.cast(step >= boundary, tf.float32) for boundary in self.boundaries
        ]
        return rate * self.decay_rate ** tf.add_n(passed)
      if self.name == 'linear_scaling':
        return rate * (
          1 + (self.scale - 1) * tf.minimum(1.0, t / self.warmup_steps)
        )
      return rate


def from_flags(batches_per_gradient, epochs_per_update=1.0):
  """Returns the Schedule that the flags ask for.

  Args:
    batches_per_gradient: int, the default of --lr_scale: how many batches the
      gradient of an update is the mean of.
    epochs_per_update: float, the epochs that one global step takes in; for
      --lr_schedule_unit=epochs.
  """
  unit = _LR_SCHEDULE_UNIT.value
  steps_per_unit = 1 / epochs_per_update if unit == 'epochs' else 1
  return Schedule(
    _LR_SCHEDULE.value,
    decay_steps=_LR_DECAY_STEPS.value * steps_per_unit,
    decay_rate=_LR_DECAY_RATE.value,
    boundaries=[
      # A whole number stays one, even after rounding in the division. What is
      # more than an int64 has is as little reached as the largest.
      math.ceil(min(boundary * steps_per_unit - 1e-6, _LAST_STEP))
      for boundary in parse_boundaries(
        _LR_BOUNDARIES.value, _LR_SCHEDULE.value, unit
      )
    ],
    warmup_steps=_LR_WARMUP_STEPS.value * steps_per_unit,
    scale=(
      batches_per_gradient if _LR_SCALE.value is None else _LR_SCALE.value
    ),
  )


def counts_epochs():
  """Whether the rate depends on how many epochs have passed, a bool."""
  return _LR_SCHEDULE_UNIT.value == 'epochs' and (
    _LR_SCHEDULE.value != 'constant'
  )


def check_flags():
  """Checks the flags before anything is built; raises cli.UsageError."""
  unit = _LR_SCHEDULE_UNIT.value
  parse_boundaries(_LR_BOUNDARIES.value, _LR_SCHEDULE.value, unit)
  for flag in (_LR_DECAY_STEPS, _LR_WARMUP_STEPS):
    given = f'--{flag.name}={flag.value:g}'
    if unit == 'steps' and (flag.value < 1 or flag.value % 1):
      raise cli.UsageError(
        f'{given}: expected whole global steps, 1 or more; '
        '--lr_schedule_unit=epochs takes fractions of an epoch'
      )
    if not 0 < flag.value < math.inf:
      raise cli.UsageError(f'{given}: expected a number of epochs above 0')


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
