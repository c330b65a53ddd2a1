"""clicks: drawn from a seed, with a best AUC that is known."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from distmnist.problems import clicks


@pytest.fixture(autouse=True)
def few(set_flags):
  set_flags('--problem=clicks', '--clicks_examples=20000', '--clicks_rows=50')


def test_examples_are_what_they_say_and_come_back(set_flags):
  x, y = clicks.load('train')
  assert x['numbers'].shape == (20000, 13)
  assert x['rows'].shape == (20000, 26)
  assert (x['rows'].min(), x['rows'].max()) == (0, 49)
  assert set(y) == {0, 1}
  assert 0.2 < y.mean() < 0.6
  counts = np.bincount(x['rows'][:, 3])
  assert 1.7 < counts[0] / counts[1] < 2.6  # 2^1.1 = 2.14
  np.testing.assert_array_equal(clicks.load('train')[1], y)
  assert len(clicks.load('test')[1]) == 2000
  set_flags('--clicks_seed=1', '--clicks_examples=20000', '--clicks_rows=50')
  assert (clicks.load('train')[1] != y).any()


def test_no_scores_are_better_than_those_of_the_planted_model():
  found = clicks.compute_best_auc('train')
  assert 0.7 < found < 0.95
  x, y = clicks.load('train')
  assert clicks.compute_auc(x['numbers'][:, 0], y) < found


def test_auc_is_the_share_of_pairs_in_order():
  labels = np.array([0, 1, 0, 1.0])
  assert clicks.compute_auc(np.array([0.1, 0.4, 0.35, 0.8]), labels) == 1
  assert clicks.compute_auc(np.array([0.1, 0.2, 0.2, 0.8]), labels) == 0.875
  assert clicks.compute_auc(np.array([4, 3, 2, 1.0]), labels) == 0.25


def test_auc_of_bins_summed_over_batches_is_that_of_all(tf_session):
  rng = np.random.default_rng(0)
  z = rng.normal(size=400).astype(np.float32)
  y = (rng.random(400) < 1 / (1 + np.exp(-z))).astype(np.float32)
  sums = 0
  for part in (slice(0, 150), slice(150, 400)):
    total = clicks.metrics(tf.constant(y[part]), tf.constant(z[part]))['auc']
    states, value = tf_session.run([total.states, total.value])
    assert value == pytest.approx(
      clicks.compute_auc(z[part], y[part]), abs=0.01
    )
    sums += np.array(states)
  found = clicks.finish({'auc': list(sums), 'loss': 0.5})
  assert found['auc'] == pytest.approx(clicks.compute_auc(z, y), abs=0.01)
  assert found['loss'] == 0.5


def test_it_serves_probabilities(tf_session):
  served = clicks.serve(tf.constant([0.0, 100.0]))
  assert tf_session.run(served['probability']).tolist() == [0.5, 1]
