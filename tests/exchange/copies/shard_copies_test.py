"""shard_copies: what travels together, and copies that follow the center."""

import pytest
import tensorflow.compat.v1 as tf

from distmnist.exchange.copies import shard_copies
from distmnist.transport import sharding, variable_lists


@pytest.mark.slow
def test_units_are_of_one_ps_and_what_stays_in_place_is_not_pulled(
  tf_session, make_cluster
):
  member = make_cluster(2, 2).worker(0)
  with tf.device(member.device_setter()):
    copies = shard_copies.ShardCopies(member)
    with sharding.sharded(2), copies.scope():
      tf.get_variable('large', [2, 1 << 18])
      for name in ('small', 'smaller'):
        tf.get_variable(name, [4])
      tf.get_variable(
        'there', [2], collections=['variables', variable_lists.IN_PLACE]
      )
  units = copies.find_units()
  assert sorted(i for unit in units for i in unit) == list(range(8))
  for unit in units:
    assert len({copies.shards[i].device for i in unit}) == 1
  # A large shard alone, small ones of a ps together, but what is not pushed.
  assert sorted(map(len, units)) == [1, 1, 1, 1, 2, 2]
  for i in (6, 7):
    assert copies.shards[i].op.name.startswith('there')
    assert [i] in units
  assert [v.op.name for v in copies.variables] == [
    'local_copy/large',
    'local_copy/small',
    'local_copy/smaller',
  ]


@pytest.mark.slow
def test_a_copy_takes_each_shard_once_its_op_has_run(make_cluster):
  cluster = make_cluster(2, 1)
  member = cluster.worker(0)
  with tf.Graph().as_default():
    with tf.device(member.device_setter()):
      copies = shard_copies.ShardCopies(member)
      with sharding.sharded(2), copies.scope():
        view = tf.get_variable('w', [4], initializer=tf.zeros_initializer())
    changes = [
      shard.assign_add([i + 1.0, i + 1.0], read_value=False)
      for i, shard in enumerate(copies.shards)
    ]
    pull = copies.pull_after(changes)
    (told,) = copies.bring([tf.constant(3)], [pull])
    value = tf.convert_to_tensor(view)
    start = [
      tf.global_variables_initializer(),
      tf.local_variables_initializer(),
    ]
    target = cluster.servers[0].target
    with tf.Session(target) as session:
      for op in start:
        session.run(op)
      assert session.run(told) == 3
      assert session.run(value).tolist() == [1, 1, 2, 2]
