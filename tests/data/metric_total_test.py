"""metric_total: a sum over all examples and not a mean; through evaluation."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from distmnist.common import cli
from distmnist.data import metric_total, split
from distmnist.training import evaluation
from distmnist.training.problems import problem_checks, problem_data
from tests.support import problems

TEXT = """
import numpy as np
import tensorflow.compat.v1 as tf
from distmnist.data.metric_total import Total

def load(split):
  return np.zeros([3, 1]), np.zeros(3)

def build(x, is_training):
  return x[:, 0] * tf.get_variable('w', [], initializer=tf.ones_initializer())

def loss(y, outputs):
  return outputs

def metrics(y, outputs):
  sums = [tf.reduce_sum(outputs), tf.stack([tf.reduce_max(outputs)] * 2)]
  return {'of_all': Total(sums, sums[0])}

def finish(means):
  total, both = means.pop('of_all')
  return means | {'of_all': total + 100 * both[1]}
"""


@pytest.mark.slow
def test_its_states_are_added_up_over_all_chunks(
  tmp_path, set_flags, monkeypatch
):
  monkeypatch.setattr(evaluation, 'CHUNK_SIZE', 2)
  found = problems.load(problems.write(tmp_path / 'p.py', TEXT), set_flags)
  x = np.float32([[1], [2], [4]])
  evaluator = evaluation.Evaluator(found, split.make(x, np.zeros(3)))
  metrics = evaluator.compute({'w': np.float32(1), 'global_step': 1})
  assert metrics == pytest.approx({'of_all': 7 + 100 * (2 + 4), 'loss': 7 / 3})


def test_it_is_a_pair_of_states_and_a_value():
  with tf.Graph().as_default():
    total = metric_total.Total([tf.constant(1.0)], tf.constant(2.0))
  assert total.value.shape == ()


WEIGHTED = """
import numpy as np
import tensorflow.compat.v1 as tf

def load(split):
  return np.zeros([3, 1]), np.zeros(3), np.ones(3)

def build(x, is_training):
  return x[:, 0] * tf.get_variable('w', [], initializer=tf.ones_initializer())

def loss(y, outputs):
  return {}

def metrics(y, outputs):
  return {{'square': outputs ** 2}}
"""


def load_weighted(tmp_path, set_flags, loss):
  path = problems.write(tmp_path / 'p.py', WEIGHTED.format(loss))
  return problems.load(path, set_flags)


@pytest.mark.slow
@pytest.mark.parametrize('weights', [[3, 0, 0.5], [0, 0, 0]])
def test_weights_count_as_in_keras(tmp_path, set_flags, monkeypatch, weights):
  monkeypatch.setattr(evaluation, 'CHUNK_SIZE', 2)
  found = load_weighted(tmp_path, set_flags, '(outputs - y) ** 2')
  x, w = np.float32([[1], [2], [4]]), np.array(weights)
  evaluator = evaluation.Evaluator(found, split.make(x, np.zeros(3), w))
  metrics = evaluator.compute({'w': np.float32(1), 'global_step': 1})
  squares = (w * x[:, 0] ** 2).sum()
  # The loss is divided by the number of examples, a metric by all weights.
  mean = squares / w.sum() if w.any() else 0
  assert metrics == pytest.approx({'loss': squares / 3, 'square': mean})
  # As a batch alone shows it.
  with tf.Graph().as_default(), tf.Session() as session:
    value = metric_total.build_mean(tf.constant(x[:, 0] ** 2), w.astype('f'))
    assert session.run(value) == pytest.approx(mean)


def test_a_mean_without_the_weights_is_refused(tmp_path, set_flags):
  found = load_weighted(tmp_path, set_flags, 'tf.reduce_mean(outputs)')
  train, _ = problem_data.load_training_splits(found)
  with pytest.raises(cli.UsageError, match=r'p\.py: loss\(\) gave a mean, but'):
    problem_checks.check_graph(found, train, batch_size=3)
