"""combiners: means with weights that are broadcast, against NumPy.

embeddings_test.py has weights of each id.
"""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from distmnist.nn import combiners


@pytest.mark.parametrize('shape', [[], [1], [3], [2, 1], [1, 3], [2, 3]])
def test_a_mean_counts_each_row(tf_session, shape):
  rng = np.random.default_rng(0)
  rows = rng.uniform(size=[2, 3, 4]).astype(np.float32)
  weights = rng.uniform(1, 2, size=shape).astype(np.float32)
  assert combiners.fits(tf.constant(weights), tf.zeros([2, 3]))
  found = {
    combiner: combiners.combine_dense(
      tf.constant(rows), tf.constant(weights), combiner
    )
    for combiner in combiners.COMBINERS
  }
  of_each = np.broadcast_to(weights, [2, 3])
  total = (rows * of_each[..., np.newaxis]).sum(1)
  sums = {
    'sum': np.ones(2),
    'mean': of_each.sum(1),
    'sqrtn': np.sqrt((of_each**2).sum(1)),
  }
  for combiner, value in tf_session.run(found).items():
    expected = total / sums[combiner][:, np.newaxis]
    np.testing.assert_allclose(value, expected, rtol=1e-5)


@pytest.mark.parametrize('shape', [[2], [2, 2], [2, 3, 1], [2, 2, 3], [4, 3]])
def test_weights_of_another_shape_do_not_fit(tf_session, shape):
  assert not combiners.fits(tf.zeros(shape), tf.zeros([2, 3]))


def test_unknown_sizes_may_fit(tf_session):
  ids = tf.placeholder(tf.int64, [None, 3])
  for shape in None, [None, None], [None, 1]:
    assert combiners.fits(tf.placeholder(tf.float32, shape), ids)
