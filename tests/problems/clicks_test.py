"""clicks: drawn from a seed, with a best AUC that is known."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from distmnist.problems import clicks


@pytest.fixture(autouse=True)
def few(set_flags):
  set_flags('--problem=clicks', '--clicks_examples=20000', '--clicks_rows=50')


@pytest.mark.slow
def test_examples_are_what_they_say_and_come_back(set_flags):
  x, y = clicks.load('train')
  assert x['numbers'].shape == (20000, 13)
  assert x['rows'].shape == (20000, 26)
  assert (x['rows'].min(), x['rows'].max()) == (0, 49)
  assert set(y['clicked']) == {0, 1}
  assert y['clicked'].mean() == pytest.approx(y['chance'].mean(), abs=0.02)
  assert 0.2 < y['chance'].mean() < 0.6
  counts = np.bincount(x['rows'][:, 3])
  assert 1.7 < counts[0] / counts[1] < 2.6  # 2^1.1 = 2.14
  again = clicks.load('train')[1]['clicked']
  np.testing.assert_array_equal(again, y['clicked'])
  assert len(clicks.load('test')[1]['clicked']) == 2000
  set_flags('--clicks_seed=1', '--clicks_examples=20000', '--clicks_rows=50')
  assert (clicks.load('train')[1]['clicked'] != y['clicked']).any()


def compute_auc(scores, labels):
  """Returns the AUC (float) of `scores` [n] for `labels` [n] of 0 and 1."""
  _, places = np.unique(scores, return_inverse=True)
  counts = np.bincount(places)
  ranks = (np.cumsum(counts) - (counts - 1) / 2)[places]
  n = labels.sum()
  return (ranks[labels > 0].sum() - n * (n + 1) / 2) / (n * (len(labels) - n))


def test_no_scores_are_better_than_those_of_the_planted_model():
  x, y = clicks.load('train')
  best = compute_auc(y['chance'], y['clicked'])
  assert 0.7 < best < 0.95
  assert compute_auc(x['numbers'][:, 0], y['clicked']) < best


def test_auc_is_the_share_of_pairs_in_order():
  labels = np.array([0, 1, 0, 1.0])
  assert compute_auc(np.array([0.1, 0.4, 0.35, 0.8]), labels) == 1
  assert compute_auc(np.array([0.1, 0.2, 0.2, 0.8]), labels) == 0.875
  assert compute_auc(np.array([4, 3, 2, 1.0]), labels) == 0.25


@pytest.mark.slow
def test_auc_of_bins_summed_over_batches_is_that_of_all(tf_session):
  rng = np.random.default_rng(0)
  z = rng.normal(size=400).astype(np.float32)
  chance = 1 / (1 + np.exp(-z))
  clicked = (rng.random(400) < chance).astype(np.float32)
  worse = z + rng.normal(size=400).astype(np.float32)
  sums = 0
  for part in (slice(0, 150), slice(150, 400)):
    y = {'clicked': clicked[part], 'chance': chance[part]}
    y = {name: tf.constant(value) for name, value in y.items()}
    totals = clicks.metrics(y, tf.constant(worse[part]))
    states, value = tf_session.run(
      [[total.states for total in totals.values()], totals['auc'].value]
    )
    assert value == pytest.approx(
      compute_auc(worse[part], clicked[part]), abs=0.01
    )
    sums += np.array(states)
  means = dict(zip(totals, map(list, sums), strict=True))
  found = clicks.finish(means | {'loss': 0.5})
  for name, scores in (('auc', worse), ('best_auc', z)):
    expected = compute_auc(scores, clicked)
    assert found[name] == pytest.approx(expected, abs=0.01)
  assert found['auc'] < found['best_auc']
  assert found['loss'] == 0.5


def test_it_serves_probabilities(tf_session):
  served = clicks.serve(tf.constant([0.0, 100.0]))
  assert tf_session.run(served['probability']).tolist() == [0.5, 1]
