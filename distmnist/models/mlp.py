"""One hidden sigmoid layer: 784-100-10, the net of most tutorials.

By default the weights are normal with stddev 1 and the biases 0, as in
Schlag's distributed-TensorFlow example; with 784 inputs most sigmoids then
start out saturated. --initializer=glorot learns far faster.
"""

from __future__ import annotations

import tensorflow.compat.v1 as tf

from distmnist.nn import hidden, layers


def make(num_classes: int) -> layers.BuildLogits:
  hidden_units = layers.hidden_units_from_flags(default=[100])
  initializer = layers.initializer_from_flags(default='normal')
  build_hidden = hidden.make(hidden_units, tf.nn.sigmoid, initializer)

  def build(images: tf.Tensor, is_training: bool) -> tf.Tensor:
    outputs = build_hidden(layers.flatten(images), is_training)
    return layers.dense(outputs, num_classes, 'softmax', initializer)

  return build
