"""The layers of which the models are made, and the flags they share.

Variables come from tf.get_variable alone, so that partitioner and getters of
the caller act on them. A model file defines `make(num_classes)`, which reads
its flags and returns

  build(images, is_training) -> logits

  images: float32 [batch, height, width, channels] in 0..1.
  is_training: bool, whether dropout acts.
  logits: float32 [batch, num_classes].
"""

import math

import tensorflow.compat.v1 as tf
from absl import flags

from distmnist import cli

INITIALIZERS = ('normal', 'glorot', 'he')

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
  'mlp: the first weights. normal has stddev 1, as in tutorials (slow to learn '
  'from); glorot and he fit the size of the layer. By default normal.',
)
_DROPOUT_RATE = flags.DEFINE_float(
  'dropout_rate',
  None,
  "cnn, dnn: the share of a hidden layer's units that a training step drops. "
  'By default 0.5 for cnn, 0 for dnn.',
  lower_bound=0,
  upper_bound=0.99,
)


def dropout_rate_from_flags(default):
  return default if _DROPOUT_RATE.value is None else _DROPOUT_RATE.value


def hidden_units_from_flags(default):
  """Returns the tuple of int of --hidden_units, or `default`."""
  words = _HIDDEN_UNITS.value
  if words is None:
    return tuple(default)
  if not words or not all(
    w.isascii() and w.isdigit() and int(w) for w in words
  ):
    raise cli.UsageError(
      f'--hidden_units={",".join(words)}: expected sizes >= 1, such as 300,100'
    )
  return tuple(int(word) for word in words)


def initializer_from_flags(default):
  return _INITIALIZER.value or default


def make_initializer(name):
  """Returns the initializer of weights called `name`, one of INITIALIZERS.

  glorot: Glorot & Bengio 2010, uniform; he: He et al. 2015, arXiv 1502.01852.
  """
  if name == 'normal':
    return tf.random_normal_initializer(stddev=1.0)
  if name == 'he':
    return tf.variance_scaling_initializer(scale=2.0, mode='fan_in')
  return tf.glorot_uniform_initializer()


def flatten(images):
  """[batch, ...] -> [batch, n]."""
  return tf.reshape(images, [-1, math.prod(images.shape.as_list()[1:])])


def dense(inputs, units, name, initializer='glorot'):
  """[batch, n] -> [batch, units]: inputs * weights + biases."""
  with tf.variable_scope(name):
    weights = tf.get_variable(
      'weights',
      [inputs.shape.as_list()[-1], units],
      initializer=make_initializer(initializer),
    )
    biases = tf.get_variable(
      'biases', [units], initializer=tf.zeros_initializer()
    )
    return tf.nn.bias_add(tf.matmul(inputs, weights), biases)


def conv(inputs, filters, kernel_size, name, initializer='glorot'):
  """[batch, h, w, c] -> [batch, h, w, filters], stride 1, same padding."""
  with tf.variable_scope(name):
    weights = tf.get_variable(
      'weights',
      [kernel_size, kernel_size, inputs.shape.as_list()[-1], filters],
      initializer=make_initializer(initializer),
    )
    biases = tf.get_variable(
      'biases', [filters], initializer=tf.zeros_initializer()
    )
    outputs = tf.nn.conv2d(inputs, weights, strides=1, padding='SAME')
    return tf.nn.bias_add(outputs, biases)


def dropout(inputs, rate, is_training):
  """Drops a share `rate` of the units, 0..1, while training."""
  return tf.nn.dropout(inputs, rate=rate) if is_training and rate else inputs


def max_pool(inputs):
  """[batch, h, w, c] -> [batch, ceil(h / 2), ceil(w / 2), c]."""
  return tf.nn.max_pool2d(inputs, ksize=2, strides=2, padding='SAME')
