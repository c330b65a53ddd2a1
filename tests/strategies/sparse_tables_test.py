"""Sparse tables under the rules that train them, and NumPy oracles."""

import functools

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from distmnist.nn import sparse_updates
from distmnist.strategies import async_sgd
from distmnist.tables import sparse_table, table_saver
from tests.support import tables

# How a table numbers its rows -> the model, and what a training leaves.
KINDS = {
  'numbers': (tables.build_outputs, {'a/rows', 'b/rows', 'w'}),
  'keys': (
    tables.build_by_keys,
    {'a/rows', 'a/keys', 'b/rows', 'b/keys', 'w'},
  ),
}


@functools.cache
def train_alone(kind, optimizer, widths):
  return tables.train_alone(async_sgd.make, optimizer, widths, KINDS[kind][0])


def assert_alike(kind, found, expected):
  assert found.keys() == expected.keys() == KINDS[kind][1]
  for name, value in expected.items():
    np.testing.assert_allclose(found[name], value, atol=1e-5, err_msg=name)


TWO, THREE = (2, 2, (3, 1)), (3, 3, (3, 3))


# An optimizer updates the rows of a shard, whatever rows those are: each
# optimizer meets one shape.
@pytest.mark.daily
@pytest.mark.slow
@pytest.mark.parametrize(
  ('kind', 'optimizer', 'num_ps', 'num_workers', 'widths'),
  [
    ('numbers', 'adam', *TWO),
    *(
      (kind, name, *shape)
      for kind, shape, names in (
        ('numbers', TWO, ('adagrad', 'sgd', 'nesterov', 'ftrl')),
        ('numbers', THREE, ('momentum', 'rmsprop')),
        ('keys', TWO, ('adagrad', 'adam', 'ftrl')),
        ('keys', THREE, ('sgd',)),
        ('keys', (1, 3, (3, 3)), ('momentum',)),
        ('keys', (1, 2, (3, 1)), ('nesterov', 'rmsprop')),
      )
      for name in names
    ),
  ],
)
def test_lock_step_is_one_process_on_the_whole_batch(
  make_cluster, kind, optimizer, num_ps, num_workers, widths
):
  cluster, (build, _) = make_cluster(num_ps, num_workers), KINDS[kind]
  found = tables.train(cluster, tables.make_lock_step, optimizer, widths, build)
  assert_alike(kind, found, train_alone(kind, optimizer, widths))


@pytest.mark.daily(but=['momentum-0-1'])
@pytest.mark.slow
@pytest.mark.parametrize(
  ('optimizer', 'num_ps', 'num_workers'),
  [
    *((name, 0, 1) for name in sparse_updates.NUM_SLOTS),
    ('ftrl', 1, 1),
    ('ftrl', 2, 2),
    ('rmsprop', 2, 2),
  ],
)
def test_a_row_that_is_made_learns_as_one_that_was_always_there(
  make_cluster, set_flags, optimizer, num_ps, num_workers
):
  set_flags()
  if num_ps:
    cluster = make_cluster(num_ps, num_workers)
    found = tables.train(
      *(cluster, tables.make_lock_step, optimizer, (3, 3)), tables.build_by_keys
    )
  else:
    found = train_alone('keys', optimizer, (3, 3))
  expected = tables.train_alone(
    async_sgd.make, optimizer, (3, 3), tables.build_as_made
  )
  np.testing.assert_allclose(found['w'], expected['w'], atol=1e-5)
  for table, ids in ('a', tables.IDS), ('b', tables.IDS[:, :, 1:]):
    seen = np.unique(ids)
    with tf.Session() as session:
      keys = session.run(tables.find_keys(tf.constant(seen), table))
    at = sparse_table.find_positions(seen, tables.NUM_ROWS)
    rows = expected[f'{table}/rows'][at[np.argsort(keys)]]
    np.testing.assert_array_equal(found[f'{table}/keys'], np.sort(keys))
    np.testing.assert_allclose(found[f'{table}/rows'], rows, atol=1e-5)


@pytest.mark.daily(but=['distmnist.strategies.drop_stale-keys'])
@pytest.mark.slow
@pytest.mark.parametrize('kind', KINDS)
@pytest.mark.parametrize('rule', tables.ASYNCHRONOUS)
def test_a_worker_that_is_never_stale_is_as_one_process(
  make_cluster, set_flags, rule, kind
):
  set_flags()
  cluster, (build, _) = make_cluster(2, 1), KINDS[kind]
  found = tables.train(cluster, rule.make, 'adagrad', (3, 3), build)
  assert_alike(kind, found, train_alone(kind, 'adagrad', (3, 3)))


@pytest.mark.slow
def test_one_process_agrees_with_numpy():
  assert_alike('numbers', train_alone('numbers', 'sgd', (3, 1)), compute())


def compute():
  """Returns {name: array} after the steps of plain SGD, in float64."""
  n = tables.NUM_ROWS
  at = sparse_table.find_positions(np.arange(n), n)
  a, b = (
    np.random.default_rng(seed).normal(
      size=[sparse_table.count_positions(n), w]
    )
    for seed, w in ((1, 3), (2, 1))
  )
  w = np.ones(3)
  for ids, y in zip(tables.IDS, tables.Y, strict=True):
    rows = at[ids]
    sums = b[rows[:, 1:]].sum(1)
    errors = a[rows].sum((1, 2)) + (sums**2).sum(1) + a[rows[:, 0]] @ w - y
    slopes = 2 * errors / len(y)
    g_a, g_b = np.zeros_like(a), np.zeros_like(b)
    for i, slope in enumerate(slopes):
      for row in rows[i]:
        g_a[row] += slope
      g_a[rows[i, 0]] += slope * w
      for row in rows[i, 1:]:
        g_b[row] += slope * 2 * sums[i]
    g_w = slopes @ a[rows[:, 0]]
    a, b, w = (x - tables.RATE * g for x, g in ((a, g_a), (b, g_b), (w, g_w)))
  return {'a/rows': a, 'b/rows': b, 'w': w}


@pytest.mark.daily
@pytest.mark.slow
def test_a_checkpoint_of_keys_on_two_ps_is_trained_on_with_three(
  make_cluster, set_flags, tmp_path
):
  set_flags()

  def build(member):
    rule = async_sgd.make(member)
    model = tables.Model(
      *(member, rule, 'adagrad', tables.BATCH), build=tables.build_by_keys
    )
    return model, table_saver.TableSaver('/cpu:0', slice_bytes=2000)

  def step_and_read(session, model):
    session.run(model.update.train_op, model.feed(1))
    return model.read(session)

  saved, restored = tables.save_on_two_ps_and_restore_on_three(
    make_cluster, build, step_and_read, f'{tmp_path}/model'
  )
  assert_alike('keys', restored, saved)
