"""token_table: which workers have a token, noted around the wait for one."""

import tensorflow.compat.v1 as tf

from distmnist.cluster import cluster as cluster_lib
from distmnist.exchange.rounds import token_table


def test_a_worker_is_noted_as_waiting_until_it_has_its_token(tf_session):
  member = cluster_lib.make_cluster(('p:1',), ('v:1', 'w:1'), 'worker', 1)
  table = token_table.TokenTable(member, '')
  read = table.read()
  assert tf_session.run(read).tolist() == [-1, -1]
  seen = []

  def take():
    seen.append(table.read())
    with tf.control_dependencies(seen):
      return tf.constant(7, tf.int64)

  token = table.wait_for_token(take, [tf.no_op()])
  token_v, seen_v = tf_session.run([token, seen[0]])
  assert (token_v, seen_v.tolist()) == (7, [-1, 0])
  assert tf_session.run(read).tolist() == [-1, 1]
  tf_session.run(table.clear())
  assert tf_session.run(read).tolist() == [-1, -1]
