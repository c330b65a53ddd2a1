"""A new center has its keys at hand before a worker sees it."""

import tensorflow.compat.v1 as tf

from distmnist.exchange import strategy
from distmnist.exchange.tables import key_hook, key_map
from distmnist.nn import layers


def test_a_new_center_fills_its_maps(tf_session):
  rows = layers.embedding(tf.constant([5]), layers.NewRows(10), 1, 'user')
  table, keys = tf.global_variables()
  tf_session.run(tf.global_variables_initializer())
  row = 3  # Of whatever bucket: the map is what `keys` say.
  tf_session.run([keys[row].assign(5).op, table[row].assign([7.0]).op])
  hook = key_hook.KeyHook()
  assert isinstance(hook, strategy.CenterHook)
  [the_map] = tf.get_collection(key_map.MAPS)
  assert isinstance(the_map, key_map.KeyMap)
  hook.on_new_center(tf_session)
  assert tf_session.run(rows).tolist() == [[7]]
