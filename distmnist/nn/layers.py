"""The layers that the models are made of, and the flags they share.

All variables come from tf.get_variable, so that the caller's partitioner and
getters act on them. A model file defines `make(num_classes)`, which reads
its flags and returns

  build(images, is_training) -> logits

  images: float32 [batch, height, width, channels] in 0..1.
  is_training: bool, whether dropout acts and batch norm uses the batch's
    statistics.
  logits: float32 [batch, num_classes].

Other updates that a training step must make, such as the moving averages of
batch norm, are given to transport/model_state.py or are in
tf.GraphKeys.UPDATE_OPS; see batch_norm.after_updates.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow.compat.v1 as tf
from absl import flags

from distmnist.common import cli
from distmnist.data import seeds
from distmnist.nn.embeddings import embedding  # noqa: F401  One of the layers.
from distmnist.tables.new_rows import NewRows  # noqa: F401

# build(images, is_training) -> logits, as above.
BuildLogits = Callable[[tf.Tensor, bool], tf.Tensor]
INITIALIZERS = ('normal', 'glorot', 'he')

# Standard deviation of a standard normal distribution truncated to -2..2.
_STDDEV_OF_TRUNCATED = 0.87962566103423978
_MAX_UNITS = 1_000_000

_HIDDEN_UNITS = flags.DEFINE_list(
  'hidden_units',
  None,
  'mlp, dnn: units of the hidden layers, such as 100 or 300,100. By default '
  "the model's own.",
)
_INITIALIZER = flags.DEFINE_enum(
  'initializer',
  None,
  INITIALIZERS,
  'mlp: the initial weights. normal has stddev 1, as in tutorials (slow to '
  'learn from); glorot and he fit the size of the layer. By default normal.',
)
_DROPOUT_RATE = flags.DEFINE_float(
  'dropout_rate',
  None,
  "cnn, dnn, vgg19: the share of a hidden layer's units that a training step "
  'drops. By default 0.5 for cnn and vgg19, 0 for dnn.',
  lower_bound=0,
  upper_bound=0.99,
)


def dropout_rate_from_flags(default: float) -> float:
  return default if _DROPOUT_RATE.value is None else _DROPOUT_RATE.value


def hidden_units_from_flags(default: Sequence[int]) -> tuple[int, ...]:
  """Returns --hidden_units, or `default`, as a tuple of int."""
  words = _HIDDEN_UNITS.value
  if words is None:
    return tuple(default)
  sizes = [int(w) if re.fullmatch('[0-9]{1,9}', w) else 0 for w in words]
  if not 1 <= min(sizes, default=0) <= max(sizes, default=0) <= _MAX_UNITS:
    raise cli.UsageError(
      f'--hidden_units={",".join(words)}: expected sizes from 1 to '
      f'{_MAX_UNITS:,}, such as 300,100'
    )
  return tuple(int(word) for word in words)


def initializer_from_flags(default: str) -> str:
  return _INITIALIZER.value or default


def make_initializer(name: str, variable_name: str) -> Callable[..., Any]:
  """Returns the initializer of weights called `name`, one of INITIALIZERS.

  glorot: Glorot & Bengio 2010, uniform; he: He et al. 2015, arXiv 1502.01852,
  normal, truncated at two standard deviations. The values depend on the seed
  and the variable's name alone.
  """

  def draw(shape: Sequence[int], key: Sequence[int]) -> tf.Tensor:
    if name == 'normal':
      return tf.random.stateless_normal(shape, key)
    fan_in, fan_out = shape[-2:]
    window = math.prod(shape[:-2])
    if name == 'he':
      stddev = math.sqrt(2 / (window * fan_in)) / _STDDEV_OF_TRUNCATED
      return stddev * tf.random.stateless_truncated_normal(shape, key)
    limit = math.sqrt(6 / (window * (fan_in + fan_out)))
    return tf.random.stateless_uniform(shape, key, -limit, limit)

  return seeds.make_initializer(variable_name, draw)


def flatten(images: tf.Tensor) -> tf.Tensor:
  """[batch, ...] -> [batch, n]."""
  return tf.reshape(images, [-1, math.prod(images.shape.as_list()[1:])])


def dense(
  inputs: tf.Tensor, units: int, name: str, initializer: str = 'glorot'
) -> tf.Tensor:
  """[batch, n] -> [batch, units]: inputs * weights + biases."""
  with tf.variable_scope(name) as scope:
    weights = tf.get_variable(
      'weights',
      [inputs.shape.as_list()[-1], units],
      initializer=make_initializer(initializer, f'{scope.name}/weights'),
    )
    biases = tf.get_variable(
      'biases', [units], initializer=tf.zeros_initializer()
    )
    return tf.nn.bias_add(tf.matmul(inputs, weights), biases)


def dense_stack(
  inputs: tf.Tensor,
  units: Sequence[int],
  name: str,
  is_last_linear: bool = True,
) -> tf.Tensor:
  """[n, k] -> [n, units[-1]]: dense layers with ReLU in between."""
  with tf.variable_scope(name):
    for i, number in enumerate(units):
      inputs = dense(inputs, number, f'dense_{i}', 'he')
      if i < len(units) - 1 or not is_last_linear:
        inputs = tf.nn.relu(inputs)
  return inputs


def conv(
  inputs: tf.Tensor,
  filters: int,
  kernel_size: int,
  name: str,
  initializer: str = 'glorot',
  stride: int = 1,
  has_biases: bool = True,
) -> tf.Tensor:
  """[batch, h, w, c] -> [batch, ceil(h / stride), ceil(w / stride), filters].

  The padding is SAME. has_biases=False is for a layer before batch norm, which
  would cancel the biases and has its own.
  """
  with tf.variable_scope(name) as scope:
    weights = tf.get_variable(
      'weights',
      [kernel_size, kernel_size, inputs.shape.as_list()[-1], filters],
      initializer=make_initializer(initializer, f'{scope.name}/weights'),
    )
    outputs = tf.nn.conv2d(inputs, weights, strides=stride, padding='SAME')
    if not has_biases:
      return outputs
    biases = tf.get_variable(
      'biases', [filters], initializer=tf.zeros_initializer()
    )
    return tf.nn.bias_add(outputs, biases)


def dropout(inputs: tf.Tensor, rate: float, is_training: bool) -> tf.Tensor:
  """Drops a share `rate` of the units, 0..1, while training."""
  if not (is_training and rate):
    return inputs
  with tf.name_scope('dropout') as scope:
    return tf.nn.experimental.stateless_dropout(
      inputs, rate, seeds.make_key(scope), rng_alg='philox'
    )


def max_pool(inputs: tf.Tensor, size: int = 2) -> tf.Tensor:
  """[batch, h, w, c] -> [batch, ceil(h / 2), ceil(w / 2), c].

  Args:
    inputs: float32 [batch, h, w, c].
    size: height and width of the pooling window.
  """
  return tf.nn.max_pool2d(inputs, ksize=size, strides=2, padding='SAME')


def pad(images: tf.Tensor, size: int) -> tf.Tensor:
  """Pads images with zeros to at least `size` rows and columns."""
  height, width = (max(0, size - n) for n in images.shape.as_list()[1:3])
  if not height + width:
    return images
  around = [[n // 2, n - n // 2] for n in (height, width)]
  return tf.pad(images, [[0, 0], *around, [0, 0]])
