"""dnn: five ELU layers of 160, He initialisation."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from distmnist.models import dnn


def build(images):
  """Returns (logits, {name: variable})."""
  logits = dnn.make(10)(images, is_training=True)
  return logits, {v.op.name: v for v in tf.global_variables()}


@pytest.mark.slow
def test_it_is_five_layers_of_160_by_default(tf_session, set_flags):
  set_flags()
  _, variables = build(tf.zeros([1, 28, 28, 1]))
  shapes = [v.shape.as_list() for v in variables.values()]
  assert shapes[::2] == [[784, 160], *[[160, 160]] * 4, [160, 10]]
  assert sum(map(np.prod, shapes)) == 230250


@pytest.mark.slow
def test_the_first_weights_are_those_of_he(tf_session, set_flags):
  set_flags()
  tf.set_random_seed(3)
  _, variables = build(tf.zeros([1, 28, 28, 1]))
  tf_session.run(tf.global_variables_initializer())
  spread = {
    name: tf_session.run(variables[f'{name}/weights']).std()
    for name in ('hidden1', 'hidden5')
  }
  expected = {'hidden1': np.sqrt(2 / 784), 'hidden5': np.sqrt(2 / 160)}
  assert spread == pytest.approx(expected, rel=0.02)


@pytest.mark.slow
def test_the_hidden_layers_are_elus(tf_session, set_flags):
  set_flags('--hidden_units=3,2')
  images = np.random.default_rng(2).random((4, 2, 2, 1))
  logits, variables = build(tf.constant(images, tf.float32))
  tf.set_random_seed(3)
  tf_session.run(tf.global_variables_initializer())
  values = tf_session.run(variables)
  outputs = images.reshape(4, 4)
  for name in ('hidden1', 'hidden2'):
    z = outputs @ values[f'{name}/weights']
    outputs = np.where(z > 0, z, np.exp(z) - 1)
  expected = outputs @ values['softmax/weights']
  np.testing.assert_allclose(
    tf_session.run(logits), expected, rtol=1e-4, atol=1e-5
  )


@pytest.mark.slow
def test_training_drops_units_only_if_asked_to(set_flags):
  for flags, is_training, is_noisy in (
    ((), True, False),
    (('--dropout_rate=0.5',), True, True),
    (('--dropout_rate=0.5',), False, False),
  ):
    with tf.Graph().as_default(), tf.Session() as session:
      set_flags(*flags)
      logits = dnn.make(10)(tf.ones([50, 28, 28, 1]), is_training)
      session.run(tf.global_variables_initializer())
      rows = session.run(logits)
    # The same image 50 times: only dropout tells the rows apart.
    assert (np.ptp(rows, axis=0).max() > 1e-3) == is_noisy
