"""Tables by keys: whole buckets on each ps, and lookups without a rule."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from distmnist import tf_internals
from distmnist.cluster import cluster as cluster_lib
from distmnist.exchange.center import center
from distmnist.nn import layers
from distmnist.tables import key_map, new_rows

MADE = layers.NewRows(100)


@pytest.mark.daily(but=['1', '7'])
@pytest.mark.slow
@pytest.mark.parametrize('num_ps', [1, 7, 61])
def test_each_ps_has_whole_buckets(tf_session, num_ps):
  hosts = tuple(f'p{i}:1' for i in range(num_ps))
  member = cluster_lib.make_cluster(hosts, ('w0:1',), 'worker', 0)
  with tf.device(member.device_setter()), center.Center(member).scope():
    layers.embedding(tf.constant([1]), MADE, 2, 'user')
  rows, keys = tf.trainable_variables(), key_map.get_all_keys()
  assert len(rows) == len(keys) == min(num_ps, 60)
  ends = 0
  for variable, of in zip(rows, keys, strict=True):
    assert variable.device == of.device
    size = variable.shape[0]
    assert size == of.shape[0]
    assert size % MADE.rows_in_bucket == 0
    assert 60 // num_ps <= size // MADE.rows_in_bucket <= 60 // num_ps + 1
    if num_ps > 1:
      for part, whole in ((variable, [2]), (of, [])):
        info = tf_internals.get_slice(part)
        assert info.full_shape == [MADE.num_positions, *whole]
        assert info.var_offset[0] == ends
      assert info.full_name == 'user/keys'
    ends += size
  assert ends == MADE.num_positions
  assert len({v.device for v in rows}) == min(num_ps, 60)


@pytest.mark.slow
def test_outside_of_a_rule_a_table_makes_no_row(tf_session):
  keys = tf.constant(['a', 'b', 'a'])
  rows = [layers.embedding(keys, MADE, 2, 'user') for _ in range(2)]
  names = [v.op.name for v in tf.global_variables()]
  assert names == ['user/rows', 'user/keys']
  tf_session.run(tf.global_variables_initializer())
  key_map.fill(tf_session)
  assert not np.any(tf_session.run(rows))
  found = tf_session.run(tf.global_variables()[1])
  assert (found < new_rows.LOWEST_KEY).all()


@pytest.mark.slow
@pytest.mark.parametrize('is_under_rule', [False, True])
def test_a_table_of_one_name_is_one(tf_session, is_under_rule):
  the_center = center.Center(cluster_lib.Cluster())
  with the_center.scope() if is_under_rule else tf.name_scope('alone'):
    layers.embedding(tf.constant([1]), MADE, 2, 'user')
    for ids, made, message in (
      (['a'], MADE, 'keys of whole numbers, as .* has, not text'),
      ([1], layers.NewRows(101), r'rows of .*=100, .* not .*=101, .*'),
      ([1], layers.NewRows(100, 2), 'rows of .*, as .* has, not .*=2, '),
    ):
      with pytest.raises(
        ValueError, match=f"^embedding 'user': expected {message}|user/rows"
      ):
        layers.embedding(tf.constant(ids), made, 2, 'user')
