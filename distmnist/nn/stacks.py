"""Stacks of dense layers, which nets on embedding tables end with."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow.compat.v1 as tf

from distmnist.nn import layers


def dense_stack(
  inputs: tf.Tensor,
  units: Sequence[int],
  name: str,
  is_last_linear: bool = True,
) -> tf.Tensor:
  """[n, k] -> [n, units[-1]], with ReLU in between.

  Args:
    inputs: float32 [n, k].
    units: one per layer.
    is_last_linear: whether the last layer has no ReLU.
  """
  with tf.variable_scope(name):
    for i, number in enumerate(units):
      inputs = layers.dense(inputs, number, f'dense_{i}', 'he')
      if i < len(units) - 1 or not is_last_linear:
        inputs = tf.nn.relu(inputs)
  return inputs
