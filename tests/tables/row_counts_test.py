"""row_counts: the rows of a step, by ps and by table."""

import pytest
import tensorflow.compat.v1 as tf

from distmnist.cluster import cluster as cluster_lib
from distmnist.exchange.center import center
from distmnist.nn import layers
from distmnist.tables import row_counts


def test_without_a_table_nothing_is_counted(tf_session):
  with center.Center(cluster_lib.Cluster()).scope():
    tf.get_variable('w', [])
  assert row_counts.find() == {}


@pytest.mark.slow
def test_ids_and_rows_are_counted_by_table(tf_session):
  with center.Center(cluster_lib.Cluster()).scope():
    layers.embedding(tf.constant([1, 2, 2, 7]), 10, 3, 'user')
    layers.embedding(tf.constant([4, 4]), 10, 3, 'ad')
    layers.embedding(tf.constant([5]), 10, 1, 'wide')
  tf_session.run(tf.global_variables_initializer())
  assert tf_session.run(row_counts.find()) == {
    'rows/ids': 7,
    'rows/different': 5,
    # float32 both ways, and the id.
    'rows/bytes_of_user': 3 * (2 * 3 * 4 + 8),
    'rows/bytes_of_ad': 1 * (2 * 3 * 4 + 8),
    'rows/bytes_of_wide': 1 * (2 * 1 * 4 + 8),
  }


@pytest.mark.slow
def test_rows_are_counted_by_ps(make_cluster, set_flags):
  set_flags()
  cluster = make_cluster(2, 1)
  member = cluster.worker(0)
  with tf.Graph().as_default():
    with tf.device(member.device_setter()), center.Center(member).scope():
      layers.embedding(tf.constant([0, 1, 30, 30]), 60, 2, 'table')
    counts = row_counts.find()
    with tf.Session(cluster.servers[0].target) as session:
      session.run(tf.global_variables_initializer())
      found = session.run(counts)
  assert found['rows/different'] == 3
  # Of 60 rows the first 30 are on the first ps.
  assert (found['rows/of_ps_0'], found['rows/of_ps_1']) == (2, 1)


def test_what_is_of_rows_is_chosen_by_name():
  values = {'loss': 1.0, 'rows/ids': 2, 'rows_of_mine': 3}
  assert row_counts.choose(values) == {'rows/ids': 2}
