"""The tables of a model: shared by name, together by width."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from distmnist.cluster import cluster as cluster_lib
from distmnist.exchange.center import center
from distmnist.nn import layers


@pytest.mark.slow
def test_tables_of_one_width_move_together_and_a_name_is_one_table(tf_session):
  the_center = center.Center(cluster_lib.Cluster())
  assert not the_center.rows
  with the_center.scope():
    first = layers.embedding(tf.constant([1, 2]), 10, 3, 'shared')
    second = layers.embedding(tf.constant([2, 7]), 10, 3, 'shared')
    other = layers.embedding(tf.constant([2]), 10, 3, 'other')
    wide = layers.embedding(tf.constant([4]), 10, 1, 'wide')
  rows = the_center.rows
  assert rows
  assert [v.op.name for v in tf.trainable_variables()] == [
    'shared/rows',
    'other/rows',
    'wide/rows',
  ]
  tf_session.run(tf.global_variables_initializer())
  numbers = [(x.num_ids, x.num_keys) for x in rows.exchanges]
  assert tf_session.run(numbers) == [(5, 4), (1, 1)]
  first_v, second_v, other_v, wide_v, tables = tf_session.run(
    [first, second, other, wide, tf.trainable_variables()]
  )
  np.testing.assert_array_equal(first_v, tables[0][[1, 2]])
  np.testing.assert_array_equal(second_v, tables[0][[2, 7]])
  np.testing.assert_array_equal(other_v, tables[1][[2]])
  np.testing.assert_array_equal(wide_v, tables[2][[4]])


@pytest.mark.slow
def test_a_step_without_an_id_moves_no_row(tf_session):
  the_center = center.Center(cluster_lib.Cluster())
  ids = tf.placeholder(tf.int64, [None])
  with the_center.scope():
    rows = layers.embedding(ids, 10, 3, 'table')
  optimizer = tf.train.AdagradOptimizer(0.1)
  gradients = the_center.compute_gradients(optimizer, tf.reduce_sum(rows))
  apply = optimizer.apply_gradients(the_center.to_shards(gradients))
  tf_session.run(tf.global_variables_initializer())
  found, pulled, _ = tf_session.run(
    [rows, the_center.count_bytes()[0], apply], {ids: []}
  )
  assert (found.shape, pulled) == ((0, 3), 0)
