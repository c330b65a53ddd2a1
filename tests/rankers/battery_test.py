"""Each net that ranks learns from clicks, by rows of sparse tables."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from distmnist.common import registry
from distmnist.common.names import RANKERS
from distmnist.problems import clicks
from distmnist.tables import sparse_table

NETS = registry.names(RANKERS)


@pytest.mark.slow
@pytest.mark.parametrize('name', NETS)
def test_a_net_learns_a_batch(tf_session, set_flags, name):
  set_flags(
    *('--problem=clicks', f'--ranker={name}', '--clicks_examples=64'),
    *('--clicks_rows=20', '--table_width=4'),
  )
  tf.set_random_seed(0)
  x, y = clicks.load('train')
  x, y = tf.nest.map_structure(tf.constant, (x, y))
  logits = clicks.build(x, True)
  assert logits.shape.as_list() == [64]
  cost = tf.reduce_mean(clicks.loss(y, logits))
  step = tf.train.AdamOptimizer(0.02).minimize(cost)
  tf_session.run(tf.global_variables_initializer())
  costs = [tf_session.run([cost, step])[0] for _ in range(80)]
  assert np.isfinite(costs).all()
  assert costs[-1] < 0.3 * costs[0]
  tables = tf.get_collection(sparse_table.TABLES)
  assert {v.shape.as_list()[0] for v in tables} == {
    sparse_table.count_positions(26 * 20)
  }
