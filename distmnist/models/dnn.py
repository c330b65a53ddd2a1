"""Five ELU layers of 160: the net of Géron's distributed exercise.

He initialisation, as in "Hands-On Machine Learning", chapter 11 (1st ed.). The
exercise's last part splits the net vertically: --vertical_slices=2.
"""

import tensorflow.compat.v1 as tf

from distmnist.nn import layers


def make(num_classes):
  hidden_units = layers.hidden_units_from_flags(default=[160] * 5)
  num_slices = layers.vertical_slices_from_flags(hidden_units)
  dropout_rate = layers.dropout_rate_from_flags(default=0)

  def build(images, is_training):
    slices = [layers.flatten(images)]
    # Evaluation runs the whole net on one device.
    n = num_slices if is_training else 1
    for i, units in enumerate(hidden_units, start=1):
      sums = layers.split_dense(slices, units, n, f'hidden{i}', 'he')
      slices = []
      for part in sums:
        with tf.colocate_with(part):
          part = layers.dropout(tf.nn.elu(part), dropout_rate, is_training)
        slices.append(part)
    outputs = slices[0] if len(slices) == 1 else tf.concat(slices, 1)
    return layers.dense(outputs, num_classes, 'softmax')

  return build
