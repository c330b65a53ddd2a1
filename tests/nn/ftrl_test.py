"""ftrl: its slots, and what it is without a penalty or with a large one.

Its equation is in optimizers_test.py.
"""

import numpy as np
import tensorflow.compat.v1 as tf

from distmnist.nn import ftrl, optimizers

START = np.array([1.0, -2.0, 0.5], np.float32)
GRADIENTS = np.random.default_rng(5).normal(size=(6, 3))


def train(session, optimizer, name, rates=None, rate_in=None):
  variable = tf.get_variable(name, initializer=START)
  gradient = tf.placeholder(tf.float32, [3])
  update = optimizer.apply_gradients([(gradient, variable)])
  session.run(tf.global_variables_initializer())
  for i, g in enumerate(GRADIENTS):
    feed = {gradient: g}
    if rates is not None:
      feed[rate_in] = rates[i]
    session.run(update, feed)
  return session.run(variable)


def test_without_a_penalty_it_is_adagrad_under_any_schedule(tf_session):
  rate = tf.placeholder(tf.float32, [])
  rates = [0.1, 0.1, 0.05, 0.02, 0.0, 0.1]
  found = [
    train(tf_session, optimizers.make_optimizer(name, rate), name, rates, rate)
    for name in ('ftrl', 'adagrad')
  ]
  np.testing.assert_allclose(found[0], found[1], rtol=1e-5)


def test_a_large_penalty_leaves_exact_zeros(tf_session):
  found = train(tf_session, ftrl.Ftrl(0.1, l1=100.0), 'w')
  assert found.tolist() == [0, 0, 0]


def test_its_sums_begin_where_random_first_weights_are(tf_session):
  w = tf.get_variable('w', [4], initializer=tf.random_normal_initializer())
  optimizer = ftrl.Ftrl(0.1)
  optimizer.apply_gradients([(tf.zeros([4]), w)])
  tf_session.run(tf.global_variables_initializer())
  found, linear = tf_session.run([w, optimizer.get_slot(w, 'linear')])
  np.testing.assert_allclose(linear, -np.sqrt(0.1) * found, rtol=1e-6)
