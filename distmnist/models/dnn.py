"""Five ELU layers of 160: the net of Géron's distributed exercise.

He initialisation, as in "Hands-On Machine Learning", chapter 11 (1st ed.). The
exercise's last part splits the net vertically: --vertical_slices=2.
"""

from __future__ import annotations

import tensorflow.compat.v1 as tf

from distmnist.nn import hidden, layers


def make(num_classes: int) -> layers.BuildLogits:
  hidden_units = layers.hidden_units_from_flags(default=[160] * 5)
  dropout_rate = layers.dropout_rate_from_flags(default=0)
  build_hidden = hidden.make(hidden_units, tf.nn.elu, 'he', dropout_rate)

  def build(images: tf.Tensor, is_training: bool) -> tf.Tensor:
    outputs = build_hidden(layers.flatten(images), is_training)
    return layers.dense(outputs, num_classes, 'softmax')

  return build
