"""clip of optimizer: gradients by their global norm."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from distmnist.nn import optimizers


def compute_clipped(tf_session, clip_norm, gradients):
  """Returns what compute_gradients makes of two gradients."""
  v = [
    tf.get_variable(n, [2], initializer=tf.zeros_initializer()) for n in 'ab'
  ]
  tf.get_variable('unused', [2])
  loss = tf.add_n([tf.reduce_sum(v[i] * gradients[i]) for i in range(2)])
  optimizer = optimizers.make_optimizer('sgd', 1.0, clip_norm=clip_norm)
  pairs = optimizer.compute_gradients(loss)
  assert [(g is None, x.op.name) for g, x in pairs] == [
    (False, 'a'),
    (False, 'b'),
    (True, 'unused'),
  ]
  train_op = optimizer.minimize(loss)
  tf_session.run(tf.global_variables_initializer())
  tf_session.run(train_op)
  return [-x for x in tf_session.run(v)]


@pytest.mark.slow
def test_gradients_are_scaled_down_to_their_global_norm(tf_session):
  # The norm of (3, 0, 0, 4) is 5.
  found = compute_clipped(tf_session, 0.5, [[3.0, 0.0], [0.0, 4.0]])
  np.testing.assert_allclose(found, [[0.3, 0.0], [0.0, 0.4]], rtol=1e-6)


@pytest.mark.slow
def test_a_small_gradient_is_not_clipped(tf_session):
  found = compute_clipped(tf_session, 5.1, [[3.0, 0.0], [0.0, 4.0]])
  np.testing.assert_allclose(found, [[3.0, 0.0], [0.0, 4.0]], rtol=1e-6)


def test_without_a_gradient_there_is_nothing_to_clip(tf_session):
  unused = tf.get_variable('unused', [2])
  optimizer = optimizers.make_optimizer('sgd', 1.0, clip_norm=1.0)
  pairs = optimizer.compute_gradients(tf.constant(1.0), [unused])
  assert pairs == [(None, unused)]


def test_a_norm_that_float16_cannot_hold_is_clipped(tf_session):
  w = tf.get_variable('w', [2], tf.float16, tf.zeros_initializer())
  optimizer = optimizers.make_optimizer('sgd', 1.0, clip_norm=0.5)
  [(gradient, _)] = optimizer.compute_gradients(
    tf.reduce_sum(w * tf.constant([300, 400], tf.float16)), [w]
  )
  tf_session.run(tf.global_variables_initializer())
  found = tf_session.run(gradient)
  np.testing.assert_allclose(found, [0.3, 0.4], rtol=1e-3)
