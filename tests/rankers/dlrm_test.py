"""dlrm: the dot product of each pair of vectors goes in once."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from distmnist.rankers import dlrm


@pytest.mark.slow
def test_its_top_takes_the_numbers_and_all_pairs(tf_session):
  ids = tf.constant([[0, 1, 2]], tf.int64)
  logits = dlrm.build(tf.ones([1, 2]), ids, 3, 4)
  assert logits.shape.as_list() == [1]
  shapes = {v.op.name: v.shape.as_list() for v in tf.trainable_variables()}
  pairs = 4 * 3 // 2  # Three rows and the vector of the numbers.
  assert shapes['top/dense_0/weights'] == [4 + pairs, 64]
  tf_session.run(tf.global_variables_initializer())
  assert np.isfinite(tf_session.run(logits)).all()
