"""cnn: its size, and dropout in training alone."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from distmnist.models import cnn

IMAGES = np.random.default_rng(4).random((2, 28, 28, 1), np.float32)


@pytest.fixture(autouse=True)
def default_flags(set_flags):
  set_flags()


@pytest.mark.slow
def test_it_has_the_3274634_parameters_of_the_tutorial(tf_session):
  cnn.make(10)(tf.zeros([1, 28, 28, 1]), is_training=True)
  shapes = {v.op.name: v.shape.as_list() for v in tf.global_variables()}
  assert shapes == {
    'conv1/weights': [5, 5, 1, 32],
    'conv1/biases': [32],
    'conv2/weights': [5, 5, 32, 64],
    'conv2/biases': [64],
    'dense1/weights': [7 * 7 * 64, 1024],
    'dense1/biases': [1024],
    'softmax/weights': [1024, 10],
    'softmax/biases': [10],
  }
  assert sum(map(np.prod, shapes.values())) == 3274634


def get_hidden(is_training):
  """Builds the model; returns what its last layer is given."""
  cnn.make(10)(tf.constant(IMAGES), is_training)
  graph = tf.get_default_graph()
  return graph.get_operation_by_name('softmax/MatMul').inputs[0]


@pytest.mark.slow
def test_training_drops_half_of_the_hidden_units_and_doubles_the_rest(
  tf_session,
):
  tf.set_random_seed(1)
  hidden = get_hidden(is_training=True)
  whole = tf.get_default_graph().get_tensor_by_name('Relu_2:0')
  tf_session.run(tf.global_variables_initializer())
  hidden_v, whole_v = tf_session.run([hidden, whole])
  active = whole_v > 0
  kept = hidden_v[active] != 0
  assert active.sum() > 500
  assert 0.42 < kept.mean() < 0.58
  np.testing.assert_allclose(
    hidden_v[active][kept], 2 * whole_v[active][kept], rtol=1e-5
  )
  assert (tf_session.run(hidden) != hidden_v).any()


@pytest.mark.slow
def test_evaluation_drops_nothing(tf_session):
  hidden = get_hidden(is_training=False)
  assert hidden.op.name == 'Relu_2'
  tf_session.run(tf.global_variables_initializer())
  assert (tf_session.run(hidden) == tf_session.run(hidden)).all()
