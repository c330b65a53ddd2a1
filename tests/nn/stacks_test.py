"""dense_stack: dense layers with ReLU in between."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from distmnist.nn import stacks


@pytest.mark.parametrize('is_last_linear', [False, True])
def test_relu_is_between_the_layers(tf_session, is_last_linear):
  inputs = tf.constant(np.random.default_rng(0).normal(size=[5, 3]), tf.float32)
  found = stacks.dense_stack(inputs, [4, 2], 'net', is_last_linear)
  assert [v.op.name for v in tf.trainable_variables()] == [
    f'net/dense_{i}/{kind}' for i in (0, 1) for kind in ('weights', 'biases')
  ]
  tf_session.run(tf.global_variables_initializer())
  value, x, (w, _, u, _) = tf_session.run(
    [found, inputs, tf.trainable_variables()]
  )
  expected = np.maximum(x @ w, 0) @ u
  if not is_last_linear:
    expected = np.maximum(expected, 0)
  np.testing.assert_allclose(value, expected, rtol=1e-5, atol=1e-6)
