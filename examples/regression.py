"""A curve in two dimensions, learnt by a net of two layers: --problem=FILE.

  python -m distmnist.launch --num_ps=1 --num_workers=2 -- \\
      --problem=examples/regression.py --optimizer=adam --epochs=20
"""

import numpy as np
import tensorflow.compat.v1 as tf
from absl import flags

UNITS = flags.DEFINE_integer('units', 32, 'Units of each hidden layer.')
best = '-mse'


def load(split):
  seed = ['train', 'validation', 'test'].index(split)
  n = [4000, 500, 500][seed]
  x = np.random.default_rng(seed).uniform(-2, 2, [n, 2])
  return x, np.sin(x[:, 0]) * x[:, 1]


def build(x, is_training):
  for layer, units in enumerate((UNITS.value, UNITS.value, 1)):
    weights = tf.get_variable(f'weights_{layer}', [x.shape[1], units])
    biases = tf.get_variable(f'biases_{layer}', [units])
    x = x @ weights + biases
    x = tf.nn.elu(x) if units > 1 else x
  return x[:, 0]


def loss(y, outputs):
  return (y - outputs) ** 2


def metrics(y, outputs):
  return {'mse': (y - outputs) ** 2, 'mae': tf.abs(y - outputs)}


def finish(means):
  return means | {'rmse': means['mse'] ** 0.5}
