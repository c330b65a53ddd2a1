"""The moving averages of the weights, where a model is judged or given away."""

import tensorflow.compat.v1 as tf
from absl import flags

from distmnist.exchange.center import center_average

_EMA_DECAY = flags.DEFINE_float(
  'ema_decay',
  0,
  'Decay of a moving average of the weights, from 0 to less than 1, such as '
  '0.999: the part of itself that the average keeps with each update of the '
  'center, less in the first ones. It is the average that is evaluated and '
  'exported; the training goes on from the weights. 0 has no average.',
  lower_bound=0,
  upper_bound=1,
)
flags.register_validator(
  'ema_decay',
  lambda decay: decay < 1,
  'expected less than 1: with 1 the average would never move',
)


def make(center, global_step):
  """Returns the center_average.CenterAverage of --ema_decay, or None.

  To be called before a strategy's `minimize`.

  Args:
    center: list of tf.Variable, the model's.
    global_step: int64 scalar variable.
  """
  if not _EMA_DECAY.value:
    return None
  trained = tf.trainable_variables()
  shards = [v for v in center if any(v is x for x in trained)]
  return center_average.CenterAverage(shards, _EMA_DECAY.value, global_step)


def name_all(variables):
  """Returns {name in a checkpoint: variable} for a model to be judged.

  Args:
    variables: list of tf.Variable, whole ones, of the model.
  """
  trained = tf.trainable_variables() if _EMA_DECAY.value else []
  return {
    _name(v.op.name) if any(v is x for x in trained) else v.op.name: v
    for v in variables
  }


def put_in_place(values):
  """Returns {name: array} in which averages are in the place of weights.

  Args:
    values: dict of variable name -> array, with averages if there are any.
  """
  if not _EMA_DECAY.value:
    return values
  return {
    name: values.get(_name(name), value) for name, value in values.items()
  }


def _name(weight):
  return f'{weight}/{center_average.NAME}'
