"""VGG19: 16 convolutions of 3x3 and three dense layers, 144 million parameters.

Simonyan and Zisserman 2014, arXiv 1409.1556, configuration E. Five blocks of
convolutions, each ending with a pool, dense 4096 twice with dropout 0.5,
softmax. Seven in ten parameters are weights of the first dense layer, which is
hard on parameter servers.

He initialisation (the paper had to grow its nets from one another). Images
smaller than 32 x 32 are padded with zeros; at 32 x 32 the first dense layer has
512 inputs, not 25,088 as at 224 x 224.
"""

from __future__ import annotations

import tensorflow.compat.v1 as tf

from distmnist.nn import hidden, layers

MIN_SIZE = 32  # Five pools leave one pixel.
# Per block: (convolutions, filters).
_BLOCKS = (2, 64), (2, 128), (4, 256), (4, 512), (4, 512)


def make(num_classes: int) -> layers.BuildLogits:
  dropout_rate = layers.dropout_rate_from_flags(default=0.5)
  build_dense = hidden.make(
    [4096, 4096], tf.nn.relu, 'he', dropout_rate, 'dense'
  )

  def build(images: tf.Tensor, is_training: bool) -> tf.Tensor:
    outputs = layers.pad(images, MIN_SIZE)
    for block, (num_convs, filters) in enumerate(_BLOCKS, start=1):
      for i in range(1, num_convs + 1):
        name = f'conv{block}_{i}'
        outputs = tf.nn.relu(layers.conv(outputs, filters, 3, name, 'he'))
      outputs = layers.max_pool(outputs)
    outputs = build_dense(layers.flatten(outputs), is_training)
    return layers.dense(outputs, num_classes, 'softmax')

  return build
