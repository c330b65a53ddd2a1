"""softmax: one layer and nothing else."""

import numpy as np
import tensorflow.compat.v1 as tf

from distmnist.models import softmax


def test_it_is_one_layer_of_7850_parameters(tf_session):
  softmax.make(10)(tf.zeros([1, 28, 28, 1]), is_training=True)
  shapes = {v.op.name: v.shape.as_list() for v in tf.global_variables()}
  assert shapes == {'softmax/weights': [784, 10], 'softmax/biases': [10]}
  assert sum(map(np.prod, shapes.values())) == 7850


def test_it_is_linear_in_the_image(tf_session):
  rng = np.random.default_rng(2)
  images, weights = rng.random((3, 2, 2, 1)), rng.normal(size=(4, 5))
  logits = softmax.make(5)(tf.constant(images, tf.float32), is_training=True)
  tf_session.run(tf.global_variables_initializer())
  tf_session.run(tf.global_variables()[0].assign(weights))
  found = tf_session.run(logits)
  np.testing.assert_allclose(found, images.reshape(3, 4) @ weights, rtol=1e-5)
