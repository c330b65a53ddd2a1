"""One hidden sigmoid layer: 784-100-10, the net of most tutorials.

By default the weights are normal with stddev 1 and the biases 0, as in
Schlag's distributed-TensorFlow example; with 784 inputs most sigmoids then
start out saturated. --initializer=glorot learns far faster.
"""

import tensorflow.compat.v1 as tf

from distmnist.nn import layers


def make(num_classes):
  hidden_units = layers.hidden_units_from_flags(default=[100])
  initializer = layers.initializer_from_flags(default='normal')

  def build(images, is_training):
    del is_training
    outputs = layers.flatten(images)
    for i, units in enumerate(hidden_units, start=1):
      outputs = tf.nn.sigmoid(
        layers.dense(outputs, units, f'hidden{i}', initializer)
      )
    return layers.dense(outputs, num_classes, 'softmax', initializer)

  return build
