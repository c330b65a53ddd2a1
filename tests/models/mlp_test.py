"""mlp: the tutorials' 784-100-10 and its first weights."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from distmnist.models import mlp


def build(images, num_classes=10):
  """Returns (logits, {name: variable})."""
  logits = mlp.make(num_classes)(images, is_training=True)
  return logits, {v.op.name: v for v in tf.global_variables()}


def test_it_is_784_100_10_by_default(tf_session, set_flags):
  set_flags()
  _, variables = build(tf.zeros([1, 28, 28, 1]))
  shapes = {name: v.shape.as_list() for name, v in variables.items()}
  assert shapes == {
    'hidden1/weights': [784, 100],
    'hidden1/biases': [100],
    'softmax/weights': [100, 10],
    'softmax/biases': [10],
  }
  assert sum(map(np.prod, shapes.values())) == 79510


def test_hidden_layers_by_flag(tf_session, set_flags):
  set_flags('--hidden_units=30,20')
  _, variables = build(tf.zeros([1, 28, 28, 1]))
  weights = [v.shape.as_list() for v in variables.values()][::2]
  assert weights == [[784, 30], [30, 20], [20, 10]]


@pytest.mark.parametrize(
  'words, stddev',
  [
    ([], 1.0),
    (['--initializer=he'], np.sqrt(2 / 784)),
  ],
)
def test_the_first_weights_are_as_wide_as_asked(
  tf_session, set_flags, words, stddev
):
  set_flags(*words)
  tf.set_random_seed(3)
  _, variables = build(tf.zeros([1, 28, 28, 1]))
  tf_session.run(tf.global_variables_initializer())
  weights = tf_session.run(variables['hidden1/weights'])
  assert weights.mean() == pytest.approx(0, abs=0.02 * stddev)
  assert weights.std() == pytest.approx(stddev, rel=0.02)
  assert not tf_session.run(variables['hidden1/biases']).any()


def test_the_hidden_layer_is_a_sigmoid(tf_session, set_flags):
  set_flags('--hidden_units=3')
  tf.set_random_seed(3)
  images = np.random.default_rng(2).random((2, 2, 2, 1))
  logits, variables = build(tf.constant(images, tf.float32))
  tf_session.run(tf.global_variables_initializer())
  values = tf_session.run(variables)
  hidden = images.reshape(2, 4) @ values['hidden1/weights']
  expected = 1 / (1 + np.exp(-hidden)) @ values['softmax/weights']
  np.testing.assert_allclose(tf_session.run(logits), expected, rtol=1e-4)
