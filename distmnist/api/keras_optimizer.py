"""The optimizer that a Keras model is compiled with, as flags of train."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
  import keras

# A keras.optimizers.schedules.LearningRateSchedule as Keras serializes it.
Schedule = dict[str, Any]

# Keras optimizers, their names here, which of their settings are flags, and
# what else makes TensorFlow 1's compute as Keras's do.
_OPTIMIZERS = {
  'SGD': ('sgd', (), {}),
  'Adam': ('adam', ('epsilon',), {}),
  'AdamW': ('adamw', ('epsilon',), {}),
  'Adagrad': ('adagrad', (), {}),
  'RMSprop': ('rmsprop', ('momentum', 'epsilon'), {'first_mean_square': 0}),
}

# Settings of Keras's optimizers that are read by name, or that change nothing.
_SAID = (
  'name',
  'learning_rate',
  'momentum',
  'nesterov',
  'global_clipnorm',
  'weight_decay',
)


def read(
  model: keras.Model, has_rate: bool = False
) -> dict[str, str | float | bool]:
  """Returns the flags of the optimizer that a model is compiled with.

  Args:
    model: compiled.
    has_rate: whether the caller gives a learning rate in place of its own.

  Raises:
    ValueError: there is none, or there are no flags for it.
  """
  if not model.compiled:
    raise ValueError('the model is not compiled: expected model.compile(...)')
  optimizer = model.optimizer
  name = type(optimizer).__name__
  if name == 'LossScaleOptimizer':  # Which compile() takes by itself.
    raise ValueError(
      'the model is compiled to scale its loss, as under mixed_float16, which '
      "no update rule here does: expected 'mixed_bfloat16', or float32"
    )
  if name not in _OPTIMIZERS:
    raise ValueError(
      f'the model is compiled with {name}: expected one of '
      f'{", ".join(_OPTIMIZERS)}, or optimizer= and learning_rate= here'
    )
  ours, taken, fixed = _OPTIMIZERS[name]
  settings = fixed | {key: getattr(optimizer, key) for key in taken}
  if name == 'SGD' and optimizer.momentum:
    ours = 'nesterov' if optimizer.nesterov else 'momentum'
    settings['momentum'] = optimizer.momentum
  if optimizer.global_clipnorm:
    settings['clip_norm'] = optimizer.global_clipnorm
  if optimizer.weight_decay is not None:
    settings['weight_decay'] = optimizer.weight_decay
    settings['decay_biases'] = True
  _check_settings(optimizer, {*settings, *_SAID})
  settings['optimizer'] = ours
  if not has_rate and read_schedule(model) is None:
    settings['learning_rate'] = optimizer.get_config()['learning_rate']
  return settings


def read_schedule(model: keras.Model) -> Schedule | None:
  """Returns the schedule that a model is compiled with, None for a number.

  Raises:
    ValueError: the rate is a function.
  """
  rate = model.optimizer.get_config()['learning_rate']
  if not isinstance(rate, dict):
    return None
  if rate['class_name'] in ('function', '__lambda__'):
    raise ValueError(
      'the model is compiled with a function as its learning rate: expected a '
      'number, or a keras.optimizers.schedules object'
    )
  return rate


def check_schedule(model: keras.Model, steps: Iterable[int]) -> None:
  """Raises ValueError if the compiled schedule has no rate at one of the steps.

  Args:
    model: compiled with a schedule.
    steps: which to try.
  """
  import keras  # noqa: PLC0415  With a Keras model, they are there.
  import numpy as np  # noqa: PLC0415

  config = model.optimizer.get_config()['learning_rate']
  schedule = keras.optimizers.schedules.deserialize(config)
  for step in steps:
    rate = float(np.asarray(keras.ops.convert_to_numpy(schedule(step))))
    if not 0 <= rate < float('inf'):
      raise ValueError(
        f'the schedule {config["class_name"]} gives {rate:g} at step {step}: '
        'expected a number of 0 or more'
      )


def _check_settings(
  optimizer: keras.optimizers.Optimizer, said: Collection[str]
) -> None:
  """Raises ValueError for one that no flag can set and that is not the default.

  Args:
    optimizer: has the settings.
    said: the names of the others.
  """
  # With a Keras model in hand, TensorFlow is there.
  from distmnist import tf_internals  # noqa: PLC0415

  if tf_internals.has_undecayed(optimizer):
    raise ValueError(
      'the model is compiled with exclude_from_weight_decay, which no flag can '
      'set: expected none, or optimizer= and weight_decay= here'
    )
  usual = type(optimizer).from_config({}).get_config()
  for key, value in optimizer.get_config().items():
    if key not in said and value != usual.get(key):
      raise ValueError(
        f'the model is compiled with {type(optimizer).__name__}({key}={value}),'
        f' which no flag can set: expected {key}={usual.get(key)}, or '
        'optimizer= and learning_rate= here'
      )
