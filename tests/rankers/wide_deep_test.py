"""wide_deep: a linear part of its own, and a net."""

import pytest
import tensorflow.compat.v1 as tf

from distmnist.rankers import wide_deep


@pytest.mark.slow
def test_without_its_net_it_is_linear(tf_session):
  ids = tf.constant([[0, 1], [1, 2]], tf.int64)
  numbers = tf.constant([[1.0], [2.0]])
  logits = wide_deep.build(numbers, ids, 3, 4)
  found = {v.op.name: v for v in tf.trainable_variables()}
  tf_session.run(tf.global_variables_initializer())
  last = found['deep/dense_2/weights']
  tf_session.run(last.assign(tf.zeros(last.shape)))
  values, weights, slope = tf_session.run(
    [logits, found['weights/rows'], found['wide/weights']]
  )
  expected = weights[[0, 1], 0].sum() + slope[0, 0]
  assert abs(values[0] - expected) < 1e-6
