"""Moving averages of the weights, for evaluating or exporting a model."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

import tensorflow.compat.v1 as tf
from absl import flags

from distmnist.transport import weight_averages

_T = TypeVar('_T')

_EMA_DECAY = flags.DEFINE_float(
  'ema_decay',
  0,
  'Decay of a moving average of the weights, from 0 to less than 1, such as '
  '0.999: the fraction of itself that the average keeps at each update of the '
  'center, less at the first ones. The average is evaluated and exported; the '
  'training goes on from the weights. 0: no average.',
  lower_bound=0,
  upper_bound=1,
)
flags.register_validator(
  'ema_decay',
  lambda decay: decay < 1,
  'expected less than 1: with 1 the average would never move',
)


def make(
  center: Iterable[tf.Variable], global_step: tf.Variable
) -> weight_averages.WeightAverages | None:
  """Returns the weight_averages.WeightAverages of --ema_decay, or None.

  Must be called before a strategy's `minimize`.

  Args:
    center: the model's.
    global_step: int64 scalar variable.
  """
  if not _EMA_DECAY.value:
    return None
  trained = tf.trainable_variables()
  shards = [v for v in center if any(v is x for x in trained)]
  return weight_averages.WeightAverages(shards, _EMA_DECAY.value, global_step)


def name_all(variables: Iterable[tf.Variable]) -> dict[str, tf.Variable]:
  """Returns {name in a checkpoint: variable} for evaluating a model.

  Args:
    variables: the model's, each whole.
  """
  trained = tf.trainable_variables() if _EMA_DECAY.value else []
  return {
    _name(v.op.name) if any(v is x for x in trained) else v.op.name: v
    for v in variables
  }


def put_in_place(values: dict[str, _T]) -> dict[str, _T]:
  """Returns {name: array} in which averages replace the weights.

  Args:
    values: by the names of variables, with averages if there are any.
  """
  if not _EMA_DECAY.value:
    return values
  return {
    name: values.get(_name(name), value) for name, value in values.items()
  }


def _name(weight: str) -> str:
  return f'{weight}/{weight_averages.NAME}'
