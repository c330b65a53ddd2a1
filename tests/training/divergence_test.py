"""divergence: the cost of what is resumed has to be finite."""

import re

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from distmnist.common import cli
from distmnist.data import split as split_lib
from distmnist.logdir import checkpoints, saving
from distmnist.nn import layers
from distmnist.training import divergence
from tests.support import problems
from tests.training import evaluation_test

pytestmark = pytest.mark.usefixtures('set_flags')  # The cost reads a flag.


def save(folder, step, **values):
  values = {f'softmax/{name}': value for name, value in values.items()}
  values['global_step'] = np.int64(step)
  saving.CheckpointWriter(str(folder), 5).save_values(values, step)
  return checkpoints.path_of_step(str(folder), step)


def test_the_cost_of_a_checkpoint_tells(tmp_path):
  split = evaluation_test.make_split(7)
  check = divergence.CostCheck(evaluation_test.PROBLEM, split)
  biases = np.zeros(3, 'f')
  sane = save(tmp_path, 1, weights=np.eye(3, dtype='f'), biases=biases)
  assert check.find(sane) is None
  # Finite numbers, whose cost is not.
  large = np.array([[3e38, -3e38, 0]] * 3, 'f')
  lost = save(tmp_path, 2, weights=large, biases=biases)
  assert re.fullmatch(
    'the cost computed from it is (inf|nan)', check.find(lost)
  )
  assert check.find(sane) is None


def test_without_data_the_cost_of_drawn_pixels_tells(tmp_path):
  check = divergence.without_data(evaluation_test.PROBLEM, (1, 3, 1))
  biases = np.zeros(3, 'f')
  sane = save(tmp_path, 1, weights=np.eye(3, dtype='f'), biases=biases)
  assert check.find(sane) is None
  large = np.array([[3e38, -3e38, 0]] * 3, 'f')
  lost = save(tmp_path, 2, weights=large, biases=biases)
  assert 'the cost computed from it is' in check.find(lost)


def test_another_model_is_named(tmp_path):
  split = evaluation_test.make_split(7)
  check = divergence.CostCheck(evaluation_test.PROBLEM, split)
  with pytest.raises(
    cli.RunError, match='has no softmax/biases: it comes from'
  ):
    check.find(save(tmp_path, 1, weights=np.eye(3, dtype='f')))


def test_words_are_looked_up_in_their_table(tmp_path):
  def build(words, is_training):
    del is_training
    given = tf.lookup.KeyValueTensorInitializer(['a', 'b'], [0, 1])
    numbers = tf.lookup.StaticHashTable(given, 0).lookup(words)
    return layers.dense(tf.one_hot(numbers, 3), 3, 'softmax')

  problem = problems.of_images(build)
  problem.preprocess = lambda x, y, is_training: (x, y)
  words = np.array([b'a', b'b'], object)
  split = split_lib.Split(words, np.arange(2, dtype=np.int32))
  check = divergence.CostCheck(problem, split)
  values = {'weights': np.eye(3, dtype='f'), 'biases': np.zeros(3, 'f')}
  assert check.find(save(tmp_path, 1, **values)) is None
