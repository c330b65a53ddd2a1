"""deepfm: the factorisation machine is the sum over all pairs."""

import itertools

import pytest
import tensorflow.compat.v1 as tf

from distmnist.rankers import deepfm


@pytest.mark.slow
def test_without_its_net_it_is_a_factorisation_machine(tf_session):
  ids = tf.constant([[0, 1, 2]], tf.int64)
  logits = deepfm.build(tf.zeros([1, 2]), ids, 3, 4)
  found = {v.op.name: v for v in tf.trainable_variables()}
  tf_session.run(tf.global_variables_initializer())
  last = found['deep/dense_2/weights']
  tf_session.run(last.assign(tf.zeros(last.shape)))
  value, rows, weights = tf_session.run(
    [logits, found['rows/rows'], found['weights/rows']]
  )
  pairs = sum(a @ b for a, b in itertools.combinations(rows, 2))
  assert abs(value[0] - pairs - weights.sum()) < 1e-5
