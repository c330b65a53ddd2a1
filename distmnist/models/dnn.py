"""Five ELU layers of 160: the net of Géron's distributed exercise.

He initialisation, as in "Hands-On Machine Learning", chapter 11 (1st ed.).
"""

import tensorflow.compat.v1 as tf

from distmnist import layers


def make(num_classes):
  hidden_units = layers.hidden_units_from_flags(default=[160] * 5)
  dropout_rate = layers.dropout_rate_from_flags(default=0)

  def build(images, is_training):
    outputs = layers.flatten(images)
    for i, units in enumerate(hidden_units, start=1):
      outputs = tf.nn.elu(layers.dense(outputs, units, f'hidden{i}', 'he'))
      outputs = layers.dropout(outputs, dropout_rate, is_training)
    return layers.dense(outputs, num_classes, 'softmax')

  return build
