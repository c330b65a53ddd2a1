"""ResNet-50: bottlenecks with batch norm, 26 million parameters, 161 variables.

He et al. 2015, arXiv 1512.03385, table 1. Sixteen bottlenecks (1x1, 3x3, 1x1
convolutions, each with batch norm, and a shortcut around them) in four stages,
the mean over all pixels, softmax. It is "v1.5", as in most benchmarks: the
stride of a stage is in its first 3x3 convolution; the paper has it in the 1x1
before that. The last gamma of a bottleneck starts at 0 (Goyal et al. 2017,
arXiv 1706.02677), so that the net starts as a shallow one.

From 64 x 64 pixels on, the stem is the paper's, 7x7 with stride 2 and a pool.
Smaller images, such as CIFAR's or MNIST's, would have no pixels left for the
last stages: their stem is 3x3 with stride 1 and no pool, as is usual for CIFAR.
Images smaller than 32 x 32 are padded with zeros.

For the averages of batch norm with several workers, see batch_norm.batch_norm.
"""

from __future__ import annotations

import tensorflow.compat.v1 as tf

from distmnist.nn import batch_norm, layers

MIN_SIZE = 32
_MIN_SIZE_OF_LARGE = 64
# Per stage: (bottlenecks, filters of their 3x3, stride of the first).
_STAGES = (3, 64, 1), (4, 128, 2), (6, 256, 2), (3, 512, 2)
_EXPANSION = 4


def make(num_classes: int) -> layers.BuildLogits:
  def build(images: tf.Tensor, is_training: bool) -> tf.Tensor:
    images = layers.pad(images, MIN_SIZE)
    if min(images.shape.as_list()[1:3]) < _MIN_SIZE_OF_LARGE:
      outputs = tf.nn.relu(_conv(images, 64, 3, 'stem', is_training))
    else:
      outputs = tf.nn.relu(_conv(images, 64, 7, 'stem', is_training, stride=2))
      outputs = layers.max_pool(outputs, size=3)
    for stage, (num_blocks, filters, stride) in enumerate(_STAGES, start=1):
      for block in range(1, num_blocks + 1):
        with tf.variable_scope(f'block{stage}_{block}'):
          outputs = _bottleneck(
            outputs, filters, stride if block == 1 else 1, is_training
          )
    outputs = tf.reduce_mean(outputs, axis=[1, 2])
    return layers.dense(outputs, num_classes, 'softmax')

  return build


def _bottleneck(
  inputs: tf.Tensor, filters: int, stride: int, is_training: bool
) -> tf.Tensor:
  """[batch, h, w, c] -> [batch, h / stride, w / stride, 4 * filters]."""
  width = _EXPANSION * filters
  shortcut = inputs
  if inputs.shape.as_list()[-1] != width:
    shortcut = _conv(inputs, width, 1, 'shortcut', is_training, stride)
  outputs = tf.nn.relu(_conv(inputs, filters, 1, 'conv1', is_training))
  outputs = tf.nn.relu(_conv(outputs, filters, 3, 'conv2', is_training, stride))
  outputs = _conv(outputs, width, 1, 'conv3', is_training, first_gamma=0.0)
  return tf.nn.relu(outputs + shortcut)


def _conv(
  inputs: tf.Tensor,
  filters: int,
  kernel_size: int,
  name: str,
  is_training: bool,
  stride: int = 1,
  first_gamma: float = 1.0,
) -> tf.Tensor:
  """A convolution and its batch norm."""
  outputs = layers.conv(
    inputs, filters, kernel_size, name, 'he', stride, has_biases=False
  )
  return batch_norm.batch_norm(
    outputs, f'{name}/norm', is_training, first_gamma
  )
