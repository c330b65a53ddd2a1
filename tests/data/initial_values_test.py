"""initial_values: what first values depend on, whatever the initializer."""

import functools

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from distmnist.cluster import cluster as cluster_lib
from distmnist.common import registry
from distmnist.common.names import STRATEGIES
from distmnist.data import initial_values, seeds
from distmnist.logdir import checkpoints
from distmnist.nn import layers
from distmnist.training import step as step_lib
from distmnist.transport import sharding

INITIALIZERS = {
  'none': None,
  'uniform': tf.random_uniform_initializer(-1, 1),
  'normal': tf.random_normal_initializer(1.0, 2.0),
  'truncated': tf.truncated_normal_initializer(stddev=0.1),
  'scaled': tf.variance_scaling_initializer(),
  'orthogonal': tf.orthogonal_initializer(),
  'class': tf.glorot_normal_initializer,
  'keras': tf.keras.initializers.HeNormal(),
  'gamma': lambda shape, dtype: tf.random.gamma(shape, 2.0, dtype=dtype),
  'own': lambda shape, dtype: tf.concat(
    [tf.random.normal(shape, dtype=dtype)[:1], tf.ones(shape, dtype)[1:]], 0
  ),
}
SHAPE = [7, 5]


def build_variables(num_more=0):
  """Makes a variable by each kind of initializer, and two tables."""
  for i in range(num_more):
    tf.get_variable(f'more_{i}', [6, 4])
  for name, initializer in INITIALIZERS.items():
    tf.get_variable(name, SHAPE, initializer=initializer)
  tf.get_variable('tensor', initializer=tf.random.normal(SHAPE))
  with tf.variable_scope('call') as scope:
    scope.set_partitioner(None)  # TensorFlow cuts none of unknown shape.
    tf.get_variable('call', initializer=lambda: tf.random.normal(SHAPE))
  tf.get_variable('zeros', SHAPE, initializer=tf.zeros_initializer())
  ids = tf.constant([3])
  layers.embedding(ids, 130, 3, 'table')
  stddev = tf.truncated_normal_initializer(stddev=0.1)
  layers.embedding(ids, 130, 3, 'other_table', initializer=stddev)
  scaled = tf.glorot_uniform_initializer
  layers.embedding(ids, 130, 3, 'scaled_table', initializer=scaled)


@functools.cache
def draw(num_shards=0, num_more=0, seed=3):
  """Returns {name: first values, whole}."""
  with tf.Graph().as_default(), tf.Session() as session:
    seeds.set_seed(seed)
    with (
      sharding.sharded(num_shards),
      tf.variable_scope('', custom_getter=initial_values.draw_by_name),
    ):
      build_variables(num_more)
    session.run(tf.global_variables_initializer())
    values = checkpoints.fetch_whole(session, tf.global_variables())
  return {k: v for k, v in values.items() if not k.startswith('more_')}


@pytest.mark.slow
@pytest.mark.parametrize(('num_shards', 'num_more'), [(2, 0), (3, 2)])
def test_neither_shards_nor_other_variables_change_them(num_shards, num_more):
  found, expected = draw(num_shards, num_more), draw()
  assert found.keys() == expected.keys()
  for name, value in expected.items():
    np.testing.assert_array_equal(found[name], value, err_msg=name)


@pytest.mark.slow
def test_another_seed_or_name_gives_others():
  ours, theirs = draw(), draw(seed=4)
  drawn = [name for name in ours if name not in ('zeros', 'own')]
  both = [np.ravel(x[name]) for x in (ours, theirs) for name in drawn]
  values = np.concatenate(both)
  assert len(np.unique(values)) > 0.99 * len(values)
  assert not ours['zeros'].any()
  assert (ours['own'][1:] == 1).all() and (ours['own'] != theirs['own']).any()


@pytest.mark.parametrize(
  'kind', [tf.random_normal_initializer, tf.keras.initializers.HeNormal]
)
def test_a_seed_of_the_initializer_counts(tf_session, kind):
  seeds.set_seed(1)
  first, same, other = (
    tf_session.run(initial_values.make_initializer(given, 'name')([3, 2]))
    for given in (kind(seed=4), kind(seed=4), kind(seed=5))
  )
  np.testing.assert_array_equal(first, same)
  assert (first != other).all()


# The bounds are five standard errors of a mean of 100,000 numbers and more.
@pytest.mark.parametrize(
  ('initializer', 'mean', 'stddev', 'most'),
  [
    (initial_values.UNIFORM(-1.0, 3.0), 1.0, 4 / 12**0.5, 2.0),
    (initial_values.NORMAL(2.0, 0.5), 2.0, 0.5, 3.0),
    (initial_values.TRUNCATED(2.0, 0.5), 2.0, 0.5 * 0.8796, 1.0),
  ],
)
def test_a_table_has_the_distribution_of_its_initializer(
  tf_session, initializer, mean, stddev, most
):
  seeds.set_seed(1)
  begin = initial_values.make_row_initializer(initializer, 'name')
  found = tf_session.run(begin([25000, 4]))
  assert found.mean() == pytest.approx(mean, abs=0.02)
  assert found.std() == pytest.approx(stddev, rel=0.02)
  assert abs(found - mean).max() <= most
  assert len(np.unique(found)) > 0.98 * found.size
  correlations = np.corrcoef(found.T)[np.triu_indices(4, 1)]
  assert abs(correlations).max() < 0.04


@pytest.mark.slow
def test_a_step_begins_with_the_same_for_any_number_of_ps(
  make_cluster, set_flags
):
  set_flags()

  def build_loss(state):
    del state
    x = layers.embedding(tf.constant([1, 2]), 30, 4, 'table')
    x = tf.matmul(x, tf.get_variable('w', [4, 6]))
    bias = tf.get_variable('b', [6], initializer=tf.random_normal_initializer())
    return tf.reduce_mean((x + bias) ** 2), {}

  found = []
  for num_ps in 0, 1, 3:
    with tf.Graph().as_default():
      member, target = cluster_lib.Cluster(), ''
      if num_ps:
        cluster = make_cluster(num_ps, 1)
        member, target = cluster.worker(0), cluster.servers[0].target
      seeds.set_seed(7)
      rule = registry.load(STRATEGIES, 'async_sgd').make(member)
      step = step_lib.build_step_of(member, rule, build_loss)
      with tf.Session(target) as session:
        session.run(tf.global_variables_initializer())
        found.append(checkpoints.fetch_whole(session, step.center))
  for values in found[1:]:
    assert values.keys() == found[0].keys() >= {'table/rows', 'w', 'b'}
    for name, value in found[0].items():
      np.testing.assert_array_equal(values[name], value, err_msg=name)
