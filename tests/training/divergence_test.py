"""divergence: the loss of what is resumed has to be finite."""

import re
import types

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from distmnist.common import cli
from distmnist.data import split as split_lib
from distmnist.logdir import checkpoints, saving
from distmnist.nn import layers
from distmnist.training import divergence
from distmnist.training.problems import problem as problem_lib
from tests.support import problems
from tests.training import evaluation_test

pytestmark = pytest.mark.usefixtures('set_flags')  # The loss reads a flag.


def save(folder, step, **values):
  values = {f'softmax/{name}': value for name, value in values.items()}
  values['global_step'] = np.int64(step)
  saving.CheckpointWriter(str(folder), 5).save_values(values, step)
  return checkpoints.path_of_step(str(folder), step)


@pytest.mark.slow
def test_the_loss_of_a_checkpoint_tells(tmp_path):
  split = evaluation_test.make_split(7)
  check = divergence.CheckpointCheck(evaluation_test.PROBLEM, split)
  biases = np.zeros(3, 'f')
  sane = save(tmp_path, 1, weights=np.eye(3, dtype='f'), biases=biases)
  assert check.find(sane) is None
  # Finite numbers, whose loss is not.
  large = np.array([[3e38, -3e38, 0]] * 3, 'f')
  lost = save(tmp_path, 2, weights=large, biases=biases)
  assert re.fullmatch(
    'the loss computed from it is (inf|nan)', check.find(lost)
  )
  assert check.find(sane) is None


@pytest.mark.slow
def test_without_data_the_loss_of_drawn_pixels_tells(tmp_path):
  check = divergence.without_data(evaluation_test.PROBLEM, (1, 3, 1))
  biases = np.zeros(3, 'f')
  sane = save(tmp_path, 1, weights=np.eye(3, dtype='f'), biases=biases)
  assert check.find(sane) is None
  large = np.array([[3e38, -3e38, 0]] * 3, 'f')
  lost = save(tmp_path, 2, weights=large, biases=biases)
  assert 'the loss computed from it is' in check.find(lost)


@pytest.mark.slow
def test_another_model_is_named(tmp_path):
  split = evaluation_test.make_split(7)
  check = divergence.CheckpointCheck(evaluation_test.PROBLEM, split)
  with pytest.raises(
    cli.RunError, match='has no softmax/biases: it comes from'
  ):
    check.find(save(tmp_path, 1, weights=np.eye(3, dtype='f')))


@pytest.mark.slow
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
  check = divergence.CheckpointCheck(problem, split)
  values = {'weights': np.eye(3, dtype='f'), 'biases': np.zeros(3, 'f')}
  assert check.find(save(tmp_path, 1, **values)) is None


def lose(y, outputs):
  """A loss that cannot take a batch without any weight; one that is large."""
  del outputs
  scale = tf.get_variable('scale', [], initializer=tf.ones_initializer())
  return scale * tf.reduce_sum(y) / tf.reduce_sum(y)


Y = np.array([0, 0, 0, 0, 1, 1, 1, 1, 0, 0, 1, 1, 0, 0, 0, 1], 'f')


def explain(numbers, loss=lose, slice_size=4):
  """Returns what is said of a step with these examples, a list of int."""
  x = np.zeros([len(Y), 1], 'f')
  problem = types.SimpleNamespace(
    preprocess=lambda x, y, is_training: (x, y),
    build=lambda x, is_training: x,
    loss=lambda y, outputs, weights: problem_lib.BatchLoss(loss(y, outputs)),
  )
  with tf.Graph().as_default():  # A worker's, without tables.
    check = divergence.LossCheck(
      problem,
      split_lib.make(x, Y),
      types.SimpleNamespace(
        worker=2, find_row=lambda place: np.array([place, *numbers])
      ),
      types.SimpleNamespace(slice_size=slice_size),
      None,
      'try a lower rate',
    )
  return check.explain(float('nan'), 17, 1)


@pytest.mark.slow
def test_a_loss_that_cannot_take_a_batch_has_not_diverged():
  said = explain([0, 1, 3, 2])
  assert said == (
    'the loss of worker 2 is nan at step 17, and is not finite at the first '
    'weights either, which give other examples 1: it is this batch that the '
    'loss cannot take (examples 0, 1, 3, 2 of the training data): let it '
    'divide by no 0, and take no log of 0'
  )
  # Of gradients that are accumulated, each slice has a loss of its own.
  assert '4, 6 more of' not in explain([0, 1, 2, 3, 4, 5])
  numbers = [4, 5, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15]
  assert '12, 13, 4 more of the training data' in explain(numbers)
  assert cli.DIVERGED in explain(numbers, slice_size=12)


@pytest.mark.parametrize(
  'loss', [lose, lambda y, outputs: tf.constant(np.inf, tf.float32)]
)
def test_a_loss_that_takes_the_batch_at_first_or_takes_none_has_diverged(loss):
  numbers = [4, 5, 6, 7] if loss is lose else [0, 1, 2, 3]
  assert explain(numbers, loss) == (
    f'the loss is nan: {cli.DIVERGED}; try a lower rate'
  )
