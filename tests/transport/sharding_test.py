"""sharding: shards, their place, and what each ps holds."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from distmnist.cluster import cluster
from distmnist.common import cli, registry
from distmnist.common.names import MODELS
from distmnist.transport import sharding


def make_cluster(num_ps):
  """The cluster of worker 0; nothing is started."""
  ps_hosts = tuple(f'p{i}:1' for i in range(num_ps))
  return cluster.make_cluster(ps_hosts, ('w0:1', 'w1:1'), 'worker', 0)


def get_shards(num_ps, shape, *settings):
  """Returns the shards of one new variable, a list of tf.Variable."""
  setter = make_cluster(num_ps).device_setter()
  with tf.device(setter), sharding.sharded(num_ps, *settings):
    tf.get_variable('x', shape, initializer=tf.zeros_initializer())
  return tf.global_variables()


def shapes(variables):
  return [v.shape.as_list() for v in variables]


@pytest.mark.parametrize(
  'num_ps, shape, expected',
  [
    (1, [784, 100], [[784, 100]]),
    (2, [784, 100], [[392, 100], [392, 100]]),
    (3, [784, 100], [[262, 100], [261, 100], [261, 100]]),
    (3, [10], [[4], [3], [3]]),
    (3, [2, 5], [[2, 2], [2, 2], [2, 1]]),
    (3, [2, 2], [[1, 2], [1, 2]]),
    (3, [1, 1], [[1, 1]]),
    (3, [], [[]]),
    (2, [0, 3], [[0, 3]]),
    (2, [4, 0], [[4, 0]]),
    (7, [5, 3, 14, 14], [[5, 3, 2, 14]] * 7),
  ],
)
def test_one_axis_is_cut_into_a_shard_a_ps(tf_session, num_ps, shape, expected):
  assert shapes(get_shards(num_ps, shape)) == expected


@pytest.mark.parametrize(
  'shape, settings, num_shards',
  [
    ([250], ('fixed', 1000), 1),  # Each would be of 500 bytes.
    ([750], ('fixed', 1000), 3),
    # Shards of 256 KiB and more; rows of 64 float32 are 256 bytes.
    ([1023, 64], ('min_max',), 1),
    ([2 * 1024, 64], ('min_max',), 2),
    ([9 * 1024, 64], ('min_max',), 3),
    ([9000, 64], ('none',), 1),
  ],
)
def test_what_would_make_small_shards_is_cut_into_fewer_or_none(
  tf_session, shape, settings, num_shards
):
  assert len(get_shards(3, shape, *settings)) == num_shards


def test_min_max_leaves_an_empty_variable_whole(tf_session):
  assert shapes(get_shards(2, [0, 3], 'min_max')) == [[0, 3]]


def test_a_variable_with_no_element_may_come_from_its_initial_value(tf_session):
  for number, value in enumerate([np.zeros([0, 2]), tf.zeros([2, 0]), []]):
    with sharding.sharded(2):
      tf.get_variable(f'x{number}', initializer=value)
  assert shapes(tf.global_variables()) == [[0, 2], [2, 0], [0]]


def place(num_ps, sizes, ps_strategy):
  """Returns the ps of each of several vectors."""
  with tf.device(make_cluster(num_ps).device_setter(ps_strategy)):
    variables = [tf.get_variable(f'v{i}', [n]) for i, n in enumerate(sizes)]
  return [tf.DeviceSpec.from_string(v.device).task for v in variables]


def test_balanced_gives_to_the_ps_with_the_fewest_bytes(tf_session):
  found = place(2, [100, 30, 30, 30, 30], sharding.LeastBytes(2))
  assert found == [0, 1, 1, 1, 1]


def test_slots_sit_beside_their_variable_and_are_not_counted(tf_session):
  least_bytes = sharding.LeastBytes(2)
  with tf.device(make_cluster(2).device_setter(least_bytes)):
    x = tf.get_variable('x', [10])
    tf.train.AdamOptimizer().apply_gradients([(tf.zeros([10]), x)])
    y = tf.get_variable('y', [10])
  slots = [v for v in tf.global_variables() if 'x/Adam' in v.name]
  assert {v.device for v in [x, *slots]} == {'/job:ps/task:0/device:CPU:0'}
  assert y.device == '/job:ps/task:1/device:CPU:0'


def test_a_table_counts_for_nothing(tf_session):
  least_bytes = sharding.LeastBytes(2)
  with tf.device(make_cluster(2).device_setter(least_bytes)):
    tables = [
      tf.raw_ops.MutableHashTableV2(key_dtype=tf.int64, value_dtype=tf.int64)
      for _ in range(2)
    ]
    x = tf.get_variable('x', [10])
  assert {table.device for table in [*tables, x]} == {
    '/job:ps/task:0/device:CPU:0'
  }


@pytest.mark.slow
@pytest.mark.parametrize(
  'model, num_ps, word',
  [
    ('cnn', 2, '--partitioner=min_max'),
    ('cnn', 3, '--partitioner=fixed'),
    ('cnn', 7, '--partitioner=min_max'),
    ('vgg19', 7, '--partitioner=fixed'),
  ],
)
def test_no_ps_holds_more_than_a_tenth_above_the_mean(
  set_flags, model, num_ps, word
):
  set_flags(word)
  module = registry.load(MODELS, model)
  with tf.Graph().as_default():
    ps_strategy = sharding.ps_strategy_from_flags(num_ps)
    with tf.device(make_cluster(num_ps).device_setter(ps_strategy)):
      tf.train.get_or_create_global_step()
      with sharding.sharded_by_flags(num_ps):
        module.make(10)(tf.zeros([1, 28, 28, 1]), is_training=True)
    held = sharding.count_bytes_per_ps(tf.global_variables(), num_ps)
  assert max(held) <= 1.1 * sum(held) / num_ps


def test_the_flags_choose_cut_and_place(set_flags, tf_session):
  set_flags('--partitioner=none', '--placement=round_robin')
  assert sharding.ps_strategy_from_flags(2) is None
  with sharding.sharded_by_flags(2):
    tf.get_variable('x', [10000, 10])
  assert shapes(tf.global_variables()) == [[10000, 10]]


def test_sharded_keeps_the_names(tf_session):
  with tf.variable_scope('outer'), sharding.sharded(2):
    tf.get_variable('x', [4])
  names = [v.op.name for v in tf.global_variables()]
  assert names == ['outer/x/part_0', 'outer/x/part_1']


def test_bytes_are_counted_a_ps(tf_session):
  get_shards(2, [5, 4])
  with tf.device('/job:ps/task:1'):
    tf.get_variable('steps', [1000], tf.int64)
  with tf.device('/job:worker/task:0'):
    tf.get_variable('local', [100])
  variables = tf.global_variables()
  # float32 3 * 4 on ps 0; 2 * 4 on ps 1, and the int64.
  assert sharding.count_bytes_per_ps(variables, 2) == [48, 32 + 8000]
  assert sharding.format_bytes_per_ps(variables, 2) == (
    'bytes held: ps 0 48, ps 1 8,032 (largest / mean 1.99)'
  )


def test_a_variable_that_is_not_on_a_ps_is_named(tf_session):
  with tf.device(make_cluster(1).device_setter()):
    right = tf.get_variable('right', [1])
    with tf.device('/job:worker/task:0/device:CPU:0'):
      tf.get_variable('astray', [1])
  tf.get_variable('bare', [1])
  sharding.check_center_is_on_ps([right])
  with pytest.raises(cli.RunError) as caught:
    sharding.check_center_is_on_ps(tf.global_variables())
  assert str(caught.value) == (
    'variables must sit on a ps to be shared, but found astray on '
    '/job:worker/task:0/device:CPU:0, bare on no device: build them with '
    'tf.get_variable and no device of their own'
  )


@pytest.mark.parametrize(
  ('num_ps', 'max_bytes', 'shape', 'num_shards'),
  [
    (2, 80, [10, 4], 2),  # 80 bytes each.
    (2, 79, [10, 4], 4),
    (1, 50, [10, 4], 4),
    (1, None, [10, 4], 1),
    (3, 4, [2], 2),  # No more than there are rows.
  ],
)
def test_what_is_too_large_is_cut_into_a_multiple_of_the_ps(
  tf_session, num_ps, max_bytes, shape, num_shards
):
  with sharding.sharded(num_ps, max_bytes=max_bytes):
    tf.get_variable('w', shape)
  assert len(tf.trainable_variables()) == num_shards


@pytest.mark.parametrize(
  ('words', 'num_shards'),
  [
    ([], 4),
    (['--max_shard_mib=0'], 2),
    (['--max_shard_mib=0.25'], 8),
    (['--max_shard_mib=0.25', '--partitioner=min_max'], 2),
  ],
)
def test_the_flag_decides_before_the_rule(
  set_flags, tf_session, words, num_shards
):
  set_flags(*words)
  with sharding.sharded_by_flags(2, 1 << 19):
    tf.get_variable('w', [1 << 19])  # 2 MiB.
  assert len(tf.trainable_variables()) == num_shards
