"""What a table has made is counted, said once when it is full, and drawn."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from distmnist.cluster import cluster as cluster_lib
from distmnist.exchange.center import center
from distmnist.nn import layers
from distmnist.tables import key_map, key_shard, new_rows
from distmnist.training.hooks import growth

MADE = new_rows.NewRows(1)
ROOM = 60 * (MADE.rows_in_bucket - new_rows.NUM_RESERVED)


@pytest.mark.slow
def test_growth_is_counted_over_a_recovery_and_said_once(
  tf_session, tmp_path, caplog
):
  caplog.set_level('INFO')
  keys = tf.placeholder(tf.int64, [None])
  with center.Center(cluster_lib.Cluster()).scope():
    rows = layers.embedding(keys, MADE, 1, 'user')
  key_shard.connect_all(lambda rows, first: [])
  step = tf.train.get_or_create_global_step()
  followed = growth.Growth(str(tmp_path))
  followed.build()
  tf_session.run(tf.global_variables_initializer())
  step.load(7, tf_session)
  key_map.fill(tf_session)
  tf_session.run(rows, {keys: [1, 2, 2]})
  followed.look_if_due(tf_session)
  few = {'rows': 2, 'capacity': 1, 'keys_without_row': 0}
  assert followed.tables == {'user': few}
  assert not caplog.messages
  tf_session.run(rows, {keys: np.arange(5000)})
  followed.look_if_due(tf_session)
  assert followed.tables == {'user': few}, 'the next look is 10 s later'
  followed.look(tf_session)
  full = {'rows': ROOM, 'capacity': 1, 'keys_without_row': 5000 - ROOM}
  assert followed.tables == {'user': full}
  tf_session.run(rows, {keys: [5001]})
  followed.look(tf_session)
  # The center is restored: what is counted there begins anew.
  key_map.fill(tf_session)
  followed.look(tf_session)
  tf_session.run(rows, {keys: [5001]})
  followed.look(tf_session)
  assert followed.tables['user']['keys_without_row'] == 5002 - ROOM
  assert caplog.messages == [
    f"the table 'user' is full: {ROOM} keys have a row of their own, and new "
    'ones share 60 rows; resume with a capacity of NewRows above 1'
  ]
  [path] = map(str, tmp_path.iterdir())
  found = [
    (event.step, value.tag, value.simple_value)
    for event in tf.train.summary_iterator(path)
    for value in event.summary.value
  ]
  assert found[:2] == [
    (7, 'tables/user/rows', 2),
    (7, 'tables/user/keys_without_row', 0),
  ]
  assert found[-1] == (7, 'tables/user/keys_without_row', 5002 - ROOM)


def test_a_model_without_such_tables_is_not_looked_at():
  with tf.Graph().as_default():
    layers.embedding(tf.constant([1]), 10, 1, 'user')
    followed = growth.Growth('no_folder')
    followed.build()
    followed.look_if_due(None)
    followed.look(None)
  assert followed.tables == {}
