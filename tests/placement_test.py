"""placement: shards, their place, and what each ps holds."""

import pytest
import tensorflow.compat.v1 as tf

from distmnist import cli, placement
from distmnist import cluster as cluster_lib


def make_cluster(num_ps):
  """The cluster of worker 0; nothing is started."""
  ps_hosts = tuple(f'p{i}:1' for i in range(num_ps))
  return cluster_lib.make_cluster(ps_hosts, ('w0:1', 'w1:1'), 'worker', 0)


def get_shards(num_ps, shape):
  """Returns the shards of one new variable, a list of tf.Variable."""
  setter = make_cluster(num_ps).device_setter()
  with tf.device(setter), placement.sharded(num_ps):
    tf.get_variable('x', shape, initializer=tf.zeros_initializer())
  return tf.global_variables()


@pytest.mark.parametrize(
  'num_ps, shape, expected',
  [
    (1, [784, 100], [[784, 100]]),
    (2, [784, 100], [[392, 100], [392, 100]]),
    (3, [784, 100], [[262, 100], [261, 100], [261, 100]]),
    (3, [10], [[4], [3], [3]]),
    (3, [2, 5], [[1, 5], [1, 5]]),
    (3, [1, 5], [[1, 5]]),
    (3, [], [[]]),
  ],
)
def test_axis_0_is_cut_into_a_shard_a_ps(tf_session, num_ps, shape, expected):
  shards = get_shards(num_ps, shape)
  assert [v.shape.as_list() for v in shards] == expected


def test_each_ps_gets_one_shard(tf_session):
  devices = [v.device for v in get_shards(3, [9, 2])]
  assert devices == [f'/job:ps/task:{i}/device:CPU:0' for i in range(3)]


def test_one_ps_needs_no_partitioner():
  assert placement.make_partitioner(0) is None
  assert placement.make_partitioner(1) is None


def test_sharded_keeps_the_names(tf_session):
  with tf.variable_scope('outer'), placement.sharded(2):
    tf.get_variable('x', [4])
  names = [v.op.name for v in tf.global_variables()]
  assert names == ['outer/x/part_0', 'outer/x/part_1']


def test_bytes_are_counted_a_ps(tf_session):
  variables = get_shards(2, [5, 4])
  with tf.device('/job:ps/task:1'):
    tf.get_variable('step', [], tf.int64)
  with tf.device('/job:worker/task:0'):
    tf.get_variable('local', [100])
  variables = tf.global_variables()
  # float32 3 * 4 on ps 0; 2 * 4 on ps 1, and an int64.
  assert placement.count_bytes_per_ps(variables, 2) == [48, 32 + 8]
  assert placement.format_bytes_per_ps(variables, 2) == (
    'bytes held: ps 0 48, ps 1 40 (largest / mean 1.09)'
  )


def test_large_numbers_of_bytes_are_readable(tf_session):
  assert placement.format_bytes_per_ps(get_shards(1, [784, 100]), 1) == (
    'bytes held: ps 0 313,600 (largest / mean 1.00)'
  )


def test_a_center_on_the_ps_is_fine(tf_session):
  placement.check_center_is_on_ps(get_shards(2, [4]))
  assert len(tf.global_variables()) == 2


def test_a_variable_that_is_not_on_a_ps_is_named(tf_session):
  with tf.device(make_cluster(1).device_setter()):
    tf.get_variable('right', [1])
    with tf.device('/job:worker/task:0/device:CPU:0'):
      tf.get_variable('astray', [1])
  tf.get_variable('bare', [1])
  with pytest.raises(cli.RunError) as caught:
    placement.check_center_is_on_ps(tf.global_variables())
  assert str(caught.value) == (
    'variables must sit on a ps to be shared, but found astray on '
    '/job:worker/task:0/device:CPU:0, bare on no device: build them with '
    'tf.get_variable and no device of their own'
  )
