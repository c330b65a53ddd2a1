"""Tables and variables that are known by a shared name."""

import tensorflow.compat.v1 as tf

from distmnist.transport import ps_state


def test_a_table_is_found_by_its_name(tf_session):
  table, same = ps_state.Table('a_table'), ps_state.Table('a_table')
  tf_session.run(table.insert([3, 5], [30, 50]))
  tf_session.run(table.insert(4, 40))
  found = tf_session.run([same.find([5, 3, 6], -1), same.find(4, 0)])
  assert found[0].tolist() == [50, 30, -1]
  assert found[1] == 40
  tf_session.run(same.remove(tf.constant([3, 6], tf.int64)))
  assert tf_session.run(table.find([3, 4, 5], 0)).tolist() == [0, 40, 50]


def test_a_table_gets_other_keys_all_at_once(tf_session):
  table = ps_state.Table('a_table')
  tf_session.run(table.insert([3, 5], [30, 50]))
  keys = tf.constant([5, 7], tf.int64)
  tf_session.run(table.replace_all(keys, keys + 1))
  assert tf_session.run(table.find([3, 5, 7], 0)).tolist() == [0, 6, 8]


def test_a_variable_is_found_by_its_name(tf_session):
  variable, same = (
    ps_state.Variable(tf.int64, [3], 'a_variable') for _ in range(2)
  )
  tf_session.run(variable.assign([1, 2, 3]))
  tf_session.run(same.add([10, 10, 10]))
  rows = tf.constant([[2], [0]], tf.int64)
  assert tf_session.run(variable.gather(rows)).tolist() == [[13], [11]]
  tf_session.run(same.scatter(rows[:, 0], tf.constant([5, 6], tf.int64)))
  one = tf.constant(1, tf.int64)
  tf_session.run(same.scatter_add(tf.constant([0, 0], tf.int64), one))
  assert tf_session.run(variable.read()).tolist() == [8, 12, 5]
