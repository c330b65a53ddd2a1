"""Learning-rate schedules, by flags.

A step t of a schedule is a global_step: an update of the center variables.
With --lr_schedule_unit=epochs the flags are in the epochs of --epochs and are
converted to steps here, so a schedule covers the same work under every rule.
A problem's own learning_rate(step, epoch) takes the place of all of them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import tensorflow.compat.v1 as tf
from absl import flags

from distmnist.common import cli
from distmnist.nn import plateau as plateau_lib

SCHEDULES = (
  'constant',
  'exponential',
  'step',
  'linear_scaling',
  'cosine',
  'polynomial',
  'plateau',
)
# What --lr_decay_steps, --lr_decay_rate and --lr_warmup_steps are by default.
_DECAY_STEPS = {'exponential': 1000.0}
_DECAY_RATES = {'exponential': 0.96, 'step': 0.96, 'plateau': 0.1}
_WARMUP_STEPS = {'linear_scaling': 500.0}
_TO_THE_END = 'cosine', 'polynomial'

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
  None,
  'exponential, cosine, polynomial: the steps, or epochs by '
  '--lr_schedule_unit, in which the rate falls by --lr_decay_rate, counted '
  'from the end of the warm-up. By default 1000 for exponential, else all up '
  'to the last step of the training.',
  lower_bound=0,
)
_LR_DECAY_RATE = flags.DEFINE_float(
  'lr_decay_rate',
  None,
  'exponential, step, cosine, polynomial, plateau: what the rate is multiplied '
  'by every --lr_decay_steps, at each of --lr_boundaries, in all, or whenever '
  '--lr_patience is over. By default 0.96 for exponential and step, 0 for '
  'cosine and polynomial, and 0.1 for plateau.',
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
  None,
  'The steps, or epochs by --lr_schedule_unit, over which the rate rises in '
  'proportion to its full value, from 0, or under linear_scaling from '
  '--learning_rate. By default 500 for linear_scaling, else 0.',
  lower_bound=0,
)
_LR_POWER = flags.DEFINE_float(
  'lr_power',
  1,
  'polynomial: the power of the part that is left; 1 is a straight line.',
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
  """A rate eta as a function of the step t.

  With warmup_steps W every rate but linear_scaling's is multiplied by
  min(1, t / W). s = max(0, t - W) counts from its end, and
  left = max(0, 1 - s / decay_steps) is the part of the decay still to come.

  Attributes:
    name: one of SCHEDULES:
      constant: eta.
      exponential: eta * decay_rate ** (s / decay_steps).
      step: eta * decay_rate ** (the number of boundaries <= t).
      linear_scaling: eta + (scale * eta - eta) * min(1, t / W), the gradual
        warm-up of Goyal et al. 2017, arXiv 1706.02677, section 2.2.
      cosine: eta * (decay_rate + (1 - decay_rate) * (1 - cos(pi * left)) / 2),
        Loshchilov and Hutter 2017, arXiv 1608.03983, equation 5, without
        restarts.
      polynomial: eta * (decay_rate + (1 - decay_rate) * left ** power), as
        tf.train.polynomial_decay.
      plateau: eta * decay_rate ** (the number of cuts before t); see
        plateau.py.
    decay_steps: float above 0, in global steps.
    decay_rate, power, scale: floats.
    boundaries: ascending ints, in global steps.
    warmup_steps: in global steps; 0 for none.
  """

  name: str = 'constant'
  decay_steps: float = 1000
  decay_rate: float = 0.96
  boundaries: Sequence[int] = ()
  warmup_steps: float = 0
  scale: float = 1.0
  power: float = 1.0

  def build(
    self,
    step: tf.Tensor,
    learning_rate: float,
    plateau: plateau_lib.Plateau | None = None,
  ) -> tf.Tensor:
    """Returns the learning rate at `step`, a float32 scalar tensor.

    Args:
      step: int64 scalar tensor, the updates of the center so far.
      learning_rate: the rate eta.
      plateau: only for the schedule of that name, which needs it.
    """
    with tf.name_scope('learning_rate'):
      rate = tf.constant(learning_rate, tf.float32)
      factor = self._build_factor(step, plateau)
      return rate if factor is None else rate * factor

  def _build_factor(
    self, step: tf.Tensor, plateau: plateau_lib.Plateau | None
  ) -> float | tf.Tensor | None:
    """Returns rate / eta, a float32 scalar, or None if it is always 1."""
    t = tf.cast(step, tf.float32)
    warm = None
    if self.warmup_steps:
      warm = tf.minimum(1.0, t / self.warmup_steps)
    if self.name == 'linear_scaling':
      return self.scale if warm is None else 1 + (self.scale - 1) * warm
    fallen = (
      self.decay_rate ** plateau.build_cuts()
      if plateau
      else self._build_decay(step, t)
    )
    return warm if fallen is None else fallen if warm is None else warm * fallen

  def _build_decay(self, step: tf.Tensor, t: tf.Tensor) -> tf.Tensor | None:
    if self.name == 'step':
      passed = [tf.cast(step >= b, tf.float32) for b in self.boundaries]
      return self.decay_rate ** tf.add_n(passed)
    if self.name == 'constant':
      return None
    done = tf.maximum(0.0, t - self.warmup_steps) / self.decay_steps
    if self.name == 'exponential':
      return self.decay_rate**done
    left = tf.maximum(0.0, 1 - done)
    if self.name == 'cosine':
      left = (1 - tf.cos(math.pi * left)) / 2
    elif self.power != 1:
      left = left**self.power
    return self.decay_rate + (1 - self.decay_rate) * left


def from_flags(
  batches_per_gradient: int,
  epochs_per_update: float = 1.0,
  last_step: int | None = None,
) -> Schedule:
  """Returns the Schedule that the flags ask for.

  Args:
    batches_per_gradient: the default of --lr_scale: how many batches the
      gradient of an update is the mean of.
    epochs_per_update: the epochs that one global step takes in; for
      --lr_schedule_unit=epochs.
    last_step: the global step at which the training ends, None if not known:
      where cosine and polynomial end by default.

  Raises:
    cli.UsageError: they would end at a step that is not known, or before the
      warm-up does.
  """
  name, unit = _LR_SCHEDULE.value, _LR_SCHEDULE_UNIT.value
  steps_per_unit = 1 / epochs_per_update if unit == 'epochs' else 1
  warmup_steps = _find_warmup() * steps_per_unit
  return Schedule(
    name,
    decay_steps=_find_decay_steps(
      name, warmup_steps, steps_per_unit, last_step
    ),
    decay_rate=_given(_LR_DECAY_RATE, _DECAY_RATES.get(name, 0.0)),
    boundaries=[
      # A whole number stays one, even after rounding in the division. What is
      # more than an int64 has is as little reached as the largest.
      math.ceil(min(boundary * steps_per_unit - 1e-6, _LAST_STEP))
      for boundary in parse_boundaries(_LR_BOUNDARIES.value, name, unit)
    ],
    warmup_steps=warmup_steps,
    scale=_given(_LR_SCALE, batches_per_gradient),
    power=_LR_POWER.value,
  )


def _given(flag: flags.FlagHolder, default: float) -> float:
  return default if flag.value is None else flag.value


def _find_warmup() -> float:
  return _given(_LR_WARMUP_STEPS, _WARMUP_STEPS.get(_LR_SCHEDULE.value, 0.0))


def _find_decay_steps(
  name: str, warmup_steps: float, steps_per_unit: float, last_step: int | None
) -> float:
  """Returns the global steps of the decay; see from_flags."""
  steps = _LR_DECAY_STEPS.value
  if steps is None:
    steps = _DECAY_STEPS.get(name)
  if steps is not None:
    return steps * steps_per_unit
  if name not in _TO_THE_END:
    return 1.0
  if last_step is None:
    raise cli.UsageError(
      f'--lr_schedule={name} needs --lr_decay_steps, the steps in which the '
      'rate falls: the last step of this training is not known'
    )
  if last_step <= warmup_steps:
    raise cli.UsageError(
      f'--lr_schedule={name} with a warm-up of {warmup_steps:g} steps: the '
      f'training ends at step {last_step}, before the rate would fall: give a '
      'smaller --lr_warmup_steps'
    )
  return last_step - warmup_steps


def counts_epochs() -> bool:
  """Whether the rate depends on how many epochs have passed."""
  return _LR_SCHEDULE_UNIT.value == 'epochs' and (
    _LR_SCHEDULE.value not in ('constant', 'plateau') or _find_warmup() > 0
  )


def ends_with_training() -> bool:
  """Whether the rate falls up to the last step of the training."""
  is_given = _LR_DECAY_STEPS.value is not None
  return _LR_SCHEDULE.value in _TO_THE_END and not is_given


def check_flags() -> None:
  """Checks the flags before anything is built; raises cli.UsageError."""
  unit = _LR_SCHEDULE_UNIT.value
  parse_boundaries(_LR_BOUNDARIES.value, _LR_SCHEDULE.value, unit)
  for flag in (_LR_DECAY_STEPS, _LR_WARMUP_STEPS):
    if flag.value is None or (flag is _LR_WARMUP_STEPS and not flag.value):
      continue
    given = f'--{flag.name}={flag.value:g}'
    if unit == 'steps' and (flag.value < 1 or flag.value % 1):
      raise cli.UsageError(
        f'{given}: expected whole global steps, 1 or more; '
        '--lr_schedule_unit=epochs takes fractions of an epoch'
      )
    if not 0 < flag.value < math.inf:
      raise cli.UsageError(f'{given}: expected a number of epochs above 0')
  rate = _LR_DECAY_RATE.value
  if _LR_SCHEDULE.value == 'plateau' and rate is not None and not 0 < rate < 1:
    raise cli.UsageError(
      f'--lr_decay_rate={rate:g}: expected a factor above 0 and below 1, by '
      'which --lr_schedule=plateau cuts the rate'
    )


def parse_boundaries(
  words: Sequence[str], schedule: str, unit: str = 'steps'
) -> list[float]:
  """Returns the numbers in `words`; checks that they ascend.

  Args:
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
