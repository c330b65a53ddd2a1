"""tables_apart: tables are trained at once under any rule that has ps."""

import threading

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from absl import flags

from distmnist.cluster import cluster as cluster_lib
from distmnist.common import registry
from distmnist.common.names import STRATEGIES
from distmnist.nn import layers
from distmnist.strategies import async_sgd
from distmnist.tables import sparse_table, tables_apart
from distmnist.training import step as step_lib
from distmnist.transport import strategy
from tests.strategies.battery_test import WITH_PS
from tests.support import in_process

NUM_ROWS, WIDTH, STEPS, WORKERS, RATE = 100, 3, 6, 2, 0.25
RNG = np.random.default_rng(3)
IDS = RNG.integers(0, NUM_ROWS, [WORKERS, STEPS, 8])
IDS[:, :, :3] %= 4  # Some rows are in each batch, and twice in some.
FACTORS = RNG.normal(size=[WORKERS, STEPS, 8, WIDTH]).astype(np.float32)


def work(cluster, name, index, ended):
  """Trains as a worker.

  Returns:
    (table, w, moved): the center when both have `ended`, and the set of (bytes
    pulled, pushed) of its steps beside those of rows.
  """
  member = cluster.worker(index)
  ids = tf.placeholder(tf.int64, [8])
  factors = tf.placeholder(tf.float32, [8, WIDTH])

  def build_loss(state):
    del state
    zeros = tf.zeros_initializer()
    rows = layers.embedding(ids, NUM_ROWS, WIDTH, 'table', initializer=zeros)
    w = tf.get_variable('w', [4], initializer=zeros)
    # The gradient of a row depends on no row, and on no moment.
    return tf.reduce_sum(rows * factors) + tf.reduce_sum((w - 1) ** 2) / 2, {}

  rule = registry.load(STRATEGIES, name).make(member)
  step = step_lib.build_step_of(member, rule, build_loss)
  table, w = (
    tf.concat([v for v in step.center if v.op.name.startswith(prefix)], 0)
    for prefix in ('table', 'w')
  )
  fetches = [
    step.update.train_op,
    step.update.bytes_pulled + tf.constant(0, tf.int64),
    step.update.bytes_pushed + tf.constant(0, tf.int64),
  ]
  hooks = rule.hooks(in_process.NoStop())
  moved = set()
  with cluster.make_session(index, hooks) as session:
    for i in range(STEPS):
      feed = {ids: IDS[index, i], factors: FACTORS[index, i]}
      _, pulled, pushed = session.run(fetches, feed)
      num_keys = len(set(IDS[index, i]))
      moved.add(
        (pulled - 4 * WIDTH * num_keys, pushed - (4 * WIDTH + 8) * num_keys)
      )
    ended.wait(in_process.DEADLINE_SECS)
    return (*session.run([table, w]), moved)


@pytest.mark.daily(but=['sync_sgd'])
@pytest.mark.slow
@pytest.mark.parametrize('name', WITH_PS)
def test_each_gradient_of_a_row_is_applied_once_under_each_rule(
  make_cluster, set_flags, name
):
  check(make_cluster, set_flags, name)


@pytest.mark.daily(but=['async_sgd---pull_ahead=1'])
@pytest.mark.slow
@pytest.mark.parametrize(
  ('name', 'word'),
  [
    ('async_sgd', '--pull_ahead=1'),
    ('sync_sgd', '--sync_barrier=shard'),
    ('sync_sgd', '--replicas_to_aggregate=1'),
    ('dc_asgd', '--dc_adaptive'),
  ],
)
def test_so_it_is_where_the_rule_itself_would_refuse_tables_or_drop_a_push(
  make_cluster, set_flags, name, word
):
  check(make_cluster, set_flags, name, word)


def check(make_cluster, set_flags, name, *words):
  set_flags('--table_strategy=async_sgd', f'--learning_rate={RATE}', *words)
  cluster, ended = make_cluster(2, WORKERS), threading.Barrier(WORKERS)
  [(table, w, moved), _] = cluster.run_workers(
    lambda index: work(cluster, name, index, ended)
  )
  expected = np.zeros([NUM_ROWS, WIDTH])
  np.subtract.at(expected, IDS.ravel(), RATE * FACTORS.reshape(-1, WIDTH))
  at = sparse_table.find_positions(np.arange(NUM_ROWS), NUM_ROWS)
  np.testing.assert_allclose(table[at], expected, atol=1e-5)
  # The rest is the rule's.
  if name == 'sync_sgd' and '--replicas_to_aggregate=1' not in words:
    np.testing.assert_allclose(w, 1 - (1 - RATE) ** STEPS, atol=1e-6)
  assert {size % w.nbytes for sizes in moved for size in sizes} == {0}


@pytest.mark.slow
@pytest.mark.parametrize('is_parsed', [True, False])
def test_without_the_flag_a_rule_trains_its_tables_itself(
  tf_session, set_flags, is_parsed
):
  set_flags()
  rule = async_sgd.AsyncSgd(cluster_lib.Cluster())
  with rule.scope():
    rows = layers.embedding(tf.constant([1, 1]), NUM_ROWS, WIDTH, 'table')
  if not is_parsed:  # A rule made by its class needs no parsed flags.
    flags.FLAGS.unparse_flags()
  try:
    assert not tables_apart.is_wanted()
    assert not rule._center.rows.is_apart
    optimizer = tf.train.GradientDescentOptimizer(RATE)
    [gradient] = rule._center.compute_gradients(optimizer, tf.reduce_sum(rows))
  finally:
    flags.FLAGS.mark_as_parsed()
  # For the one row that the step looks up, and not kept for a later update.
  tf_session.run(tf.global_variables_initializer())
  assert tf_session.run(gradient).tolist() == [[2.0] * WIDTH]
  update = strategy.Update(tf.constant(1), None, 0, 0)
  assert tables_apart.add_to(update, None) is update
