"""Sparse tables under the rules that train them, and NumPy oracles."""

import functools

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from distmnist.exchange.tables import sparse_table
from distmnist.strategies import async_sgd
from tests.support import tables


@functools.cache
def train_alone(optimizer, widths):
  return tables.train_alone(async_sgd.make, optimizer, widths)


def assert_alike(found, expected):
  assert found.keys() == expected.keys() == {'a/rows', 'b/rows', 'w'}
  for name, value in expected.items():
    np.testing.assert_allclose(found[name], value, atol=1e-5, err_msg=name)


TWO, THREE = (2, 2, (3, 1)), (3, 3, (3, 3))


# An optimizer updates the rows of a shard, whatever rows those are: each
# optimizer meets one shape.
@pytest.mark.parametrize(
  ('num_ps', 'num_workers', 'widths', 'optimizer'),
  [
    (*TWO, 'adam'),
    *(
      pytest.param(*shape, name, marks=pytest.mark.slow)
      for shape, names in (
        (TWO, ('adagrad', 'sgd', 'nesterov', 'ftrl')),
        (THREE, ('momentum', 'rmsprop')),
      )
      for name in names
    ),
  ],
)
def test_lock_step_is_one_process_on_the_whole_batch(
  make_cluster, num_ps, num_workers, widths, optimizer
):
  cluster = make_cluster(num_ps, num_workers)
  found = tables.train(cluster, tables.make_lock_step, optimizer, widths)
  assert_alike(found, train_alone(optimizer, widths))


@pytest.mark.slow
@pytest.mark.parametrize(
  'rule',
  tables.ASYNCHRONOUS,
)
def test_a_worker_that_is_never_stale_is_as_one_process(
  make_cluster, set_flags, rule
):
  set_flags()
  found = tables.train(make_cluster(2, 1), rule.make, 'adagrad', (3, 3))
  assert_alike(found, train_alone('adagrad', (3, 3)))


def test_one_process_agrees_with_numpy():
  found = train_alone('sgd', (3, 1))
  assert_alike(found, compute())


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


@pytest.mark.slow
def test_a_checkpoint_of_two_ps_is_restored_on_three(make_cluster, tmp_path):
  def build(member):
    rule = async_sgd.make(member)
    model = tables.Model(member, rule, 'adagrad', tables.BATCH)
    return model, tf.train.Saver()

  def read(session, model):
    return tables.read_whole(session, model.trained)

  saved, restored = tables.save_on_two_ps_and_restore_on_three(
    make_cluster, build, read, f'{tmp_path}/model'
  )
  assert_alike(restored, saved)
