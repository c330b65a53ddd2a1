"""The classic MNIST convolutional net: 3.3 million parameters.

conv 5x5x32, pool, conv 5x5x64, pool, dense 1024, dropout 0.5, softmax.
"""

from __future__ import annotations

import tensorflow.compat.v1 as tf

from distmnist.nn import hidden, layers


def make(num_classes: int) -> layers.BuildLogits:
  dropout_rate = layers.dropout_rate_from_flags(default=0.5)
  build_dense = hidden.make([1024], tf.nn.relu, 'glorot', dropout_rate, 'dense')

  def build(images: tf.Tensor, is_training: bool) -> tf.Tensor:
    outputs = tf.nn.relu(layers.conv(images, 32, 5, 'conv1'))
    outputs = layers.max_pool(outputs)
    outputs = tf.nn.relu(layers.conv(outputs, 64, 5, 'conv2'))
    outputs = layers.flatten(layers.max_pool(outputs))
    outputs = build_dense(outputs, is_training)
    return layers.dense(outputs, num_classes, 'softmax')

  return build
