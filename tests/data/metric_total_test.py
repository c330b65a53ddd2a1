"""metric_total: a sum over all examples and not a mean; through evaluation."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from distmnist.data import metric_total, split
from distmnist.training import evaluation
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
