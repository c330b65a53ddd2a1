"""Where the rows of a sparse table lie."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from distmnist.tables import sparse_table


@pytest.mark.parametrize('num_rows', [1, 2, 59, 60, 61, 1000])
def test_each_row_has_a_position_of_its_own(num_rows):
  ids = np.arange(num_rows)
  positions = sparse_table.find_positions(ids, num_rows)
  count = sparse_table.count_positions(num_rows)
  assert len(set(positions)) == num_rows
  assert 0 <= min(positions) <= max(positions) < count
  assert count < num_rows + sparse_table.NUM_BUCKETS
  assert sparse_table.find_id(positions, count).tolist() == ids.tolist()


@pytest.mark.parametrize('num_ps', [2, 3, 4])
def test_any_run_of_ids_is_spread_over_all_ps(num_ps):
  positions = sparse_table.find_positions(np.arange(600), 60_000)
  owners = positions * num_ps // sparse_table.count_positions(60_000)
  assert np.bincount(owners).tolist() == [600 // num_ps] * num_ps


def test_without_a_strategy_a_table_is_a_variable(tf_session):
  with tf.variable_scope('user'):
    table = sparse_table.get_table(120, 2, tf.random_uniform_initializer())
  assert sparse_table.find_name(table) == 'user'
  assert table.shape.as_list() == [120, 2]
  assert [v.name for v in tf.get_collection(sparse_table.TABLES)] == [
    'user/rows:0'
  ]
  tf_session.run(table.initializer)
  rows = sparse_table.look_up(table, tf.constant([3, 3], tf.int64))
  found, whole = tf_session.run([rows, table])
  assert found.tolist() == [whole[3].tolist()] * 2


def test_a_shard_has_the_name_of_its_table(tf_session):
  with tf.variable_scope('shop/part_id'):
    shards = tf.get_variable(
      'rows', [61, 2], partitioner=tf.fixed_size_partitioner(2)
    )
  names = [sparse_table.find_name(shard) for shard in shards]
  assert names == ['shop/part_id'] * 2
