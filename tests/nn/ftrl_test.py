"""ftrl: its slots; its equation is in optimizers_test.py."""

import numpy as np
import tensorflow.compat.v1 as tf

from distmnist.nn import ftrl


def test_a_large_penalty_leaves_exact_zeros(tf_session):
  w = tf.get_variable('w', initializer=[1.0, -2.0, 0.5])
  optimizer = ftrl.Ftrl(0.1, l1=100.0)
  update = optimizer.apply_gradients([(tf.constant([0.3, 2.0, -1.0]), w)])
  tf_session.run(tf.global_variables_initializer())
  tf_session.run(update)
  assert tf_session.run(w).tolist() == [0, 0, 0]


def test_its_sums_begin_where_random_first_weights_are(tf_session):
  w = tf.get_variable('w', [4], initializer=tf.random_normal_initializer())
  optimizer = ftrl.Ftrl(0.1)
  optimizer.apply_gradients([(tf.zeros([4]), w)])
  tf_session.run(tf.global_variables_initializer())
  found, linear = tf_session.run([w, optimizer.get_slot(w, 'linear')])
  np.testing.assert_allclose(linear, -np.sqrt(0.1) * found, rtol=1e-6)
