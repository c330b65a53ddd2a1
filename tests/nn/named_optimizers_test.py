"""named_optimizers: a name, and what is made of it."""

import pytest
import tensorflow.compat.v1 as tf

from distmnist.nn import lamb, lars, named_optimizers, optimizers

KINDS = {
  'sgd': tf.train.GradientDescentOptimizer,
  'nesterov': tf.train.MomentumOptimizer,
  'adamw': tf.train.AdamOptimizer,
  'rmsprop': tf.train.RMSPropOptimizer,
  'lars': lars.Lars,
  'lamb': lamb.Lamb,
}


@pytest.mark.parametrize('name', KINDS)
def test_a_name_stands_for_an_optimizer(name):
  common = {'learning_rate': 0.1, 'use_locking': True}
  made = named_optimizers.make(name, 0.9, common, {})
  assert type(made) is KINDS[name]
  assert made._use_locking


def test_every_name_has_one():
  common = {'learning_rate': 0.1, 'use_locking': False}
  made = {
    name: type(named_optimizers.make(name, 0.9, common, {}))
    for name in optimizers.OPTIMIZERS
  }
  # Momentum with and without Nesterov's; AdamW is Adam and a decay.
  assert len(set(made.values())) == len(made) - 2
