"""Updates of rows: as the optimizer's own, and what the other rows keep."""

import threading

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from distmnist.nn import optimizers, sparse_updates
from distmnist.tables import sparse_table

EXACT = 'sgd', 'adagrad', 'ftrl'
LAZY = 'momentum', 'nesterov', 'rmsprop', 'adam', 'adamw'
START = np.random.default_rng(0).normal(size=[4, 2]).astype(np.float32)
GRADIENTS = np.random.default_rng(1).normal(size=[5, 4, 2]).astype(np.float32)


def train(session, name, rows_of_step, is_sparse):
  """Returns (values after the steps, those after the last but one)."""
  optimizer = optimizers.make_optimizer(name, 0.1)
  variable = tf.Variable(
    START,
    use_resource=True,
    collections=[tf.GraphKeys.GLOBAL_VARIABLES, sparse_table.TABLES],
  )
  rows = tf.placeholder(tf.int64, [None])
  gradient = tf.placeholder(tf.float32, [None, 2])
  given = gradient
  if is_sparse:
    given = tf.IndexedSlices(gradient, rows, tf.constant([4, 2], tf.int64))
  apply = optimizer.apply_gradients([(given, variable)])
  session.run(tf.global_variables_initializer())
  kept = []
  for whole, some in zip(GRADIENTS, rows_of_step, strict=True):
    masked = np.zeros_like(whole)
    masked[some] = whole[some]
    value = whole[some] if is_sparse else masked
    session.run(apply, {gradient: value, rows: some})
    kept.append(session.run(variable))
  return kept


@pytest.mark.slow
@pytest.mark.parametrize('name', [*EXACT, *LAZY])
def test_of_all_rows_it_is_the_dense_update_with_as_many_slots(
  tf_session, name
):
  found = train(tf_session, name, [range(4)] * 5, True)[-1]
  whole = [v for v in tf.global_variables() if v.shape == [4, 2]]
  assert len(whole) - 1 == sparse_updates.NUM_SLOTS[name]
  if name != 'adamw':  # Which decays whole.
    expected = train(tf_session, name, [range(4)] * 5, False)[-1]
    np.testing.assert_allclose(found, expected, atol=1e-6)


SOME = [[0, 1], [1, 2], [0, 2], [2], [1, 2]]


@pytest.mark.slow
@pytest.mark.parametrize('name', EXACT)
def test_a_gradient_of_zeros_changes_nothing_anyway(tf_session, name):
  found, expected = (
    train(tf_session, name, SOME, is_sparse)[-1] for is_sparse in (True, False)
  )
  np.testing.assert_allclose(found, expected, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize('name', LAZY)
def test_rows_that_are_not_there_stay_where_they_are(tf_session, name):
  found = train(tf_session, name, SOME, True)
  dense = train(tf_session, name, SOME, False)
  np.testing.assert_array_equal(found[1][0], found[0][0])
  np.testing.assert_array_equal(found[-1][3], START[3])
  if name != 'rmsprop':  # Only the next line tells its momentum apart.
    assert abs(dense[1][0] - dense[0][0]).min() > 1e-4
  assert abs(found[-1] - dense[-1]).max() > 1e-3


@pytest.mark.slow
def test_lazy_adam_is_what_its_formula_says(tf_session):
  found = train(tf_session, 'adam', SOME, True)
  w, m, v = START.astype(float), np.zeros([4, 2]), np.zeros([4, 2])
  for t, (gradient, rows) in enumerate(zip(GRADIENTS, SOME, strict=True), 1):
    g = gradient[rows]
    m[rows] = 0.9 * m[rows] + 0.1 * g
    v[rows] = 0.999 * v[rows] + 0.001 * g**2
    rate = 0.1 * np.sqrt(1 - 0.999**t) / (1 - 0.9**t)
    w[rows] -= rate * m[rows] / (np.sqrt(v[rows]) + 1e-8)
    np.testing.assert_allclose(found[t - 1], w, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize('name', ['sgd', 'momentum'])
def test_no_update_of_a_row_is_lost_to_another_worker(make_cluster, name):
  cluster = make_cluster(2, 2)
  shape, times, made = [2000, 64], 100, threading.Barrier(2)

  def work(index):
    pairs = []
    for ps in range(2):
      with tf.device(f'/job:ps/task:{ps}'):
        table = tf.get_variable(
          f'{name}_{ps}', shape, initializer=tf.zeros_initializer()
        )
        rows = tf.range(shape[0], dtype=tf.int64)
        gradient = tf.fill(shape, -1.0)
        pairs.append((tf.IndexedSlices(gradient, rows), table))
    optimizer = optimizers.make_optimizer(name, 1.0, momentum=1.0)
    with tf.device('/job:ps/task:0'):
      apply = optimizer.apply_gradients(pairs)
    with tf.Session(
      cluster.servers[index].target, config=cluster.session_config(index)
    ) as session:
      if not index:
        session.run(tf.global_variables_initializer())
      made.wait(60)
      for _ in range(times):
        session.run(apply)
      made.wait(60)
      return session.run([table for _, table in pairs])

  found = cluster.run_workers(work)[0]
  n = 2 * times
  expected = n if name == 'sgd' else n * (n + 1) / 2  # Whole numbers: exact.
  np.testing.assert_array_equal(found, np.full([2, *shape], expected))
