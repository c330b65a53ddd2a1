"""evaluation: of variables at hand, whole or in shards."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from distmnist.data import split as split_lib
from distmnist.logdir import checkpoints
from distmnist.nn import batch_norm, layers
from distmnist.training import evaluation
from distmnist.transport import sharding
from tests.support import problems

pytestmark = pytest.mark.usefixtures('set_flags')  # The loss reads a flag.


def build_model(images, is_training):
  del is_training
  return layers.dense(layers.flatten(images), 3, 'softmax')


PROBLEM = problems.of_images(build_model)


def make_split(num_images):
  """The label of an image is the index of its brightest pixel of three."""
  labels = np.arange(num_images, dtype=np.int32) % 3
  images = np.zeros((num_images, 1, 3, 1), np.uint8)
  images[np.arange(num_images), 0, labels] = 255
  return split_lib.Split(images, labels)


def make_values(weights):
  return {
    'softmax/weights': np.array(weights, np.float32),
    'softmax/biases': np.zeros(3, np.float32),
    'global_step': 7,
  }


@pytest.mark.slow
def test_accuracy_is_the_share_of_right_answers_over_all_chunks():
  num_images = 2 * evaluation.CHUNK_SIZE + 2
  evaluator = evaluation.Evaluator(PROBLEM, make_split(num_images))
  found = evaluator.compute(make_values(np.eye(3)))
  # The logits are 1 and 0, 0.
  assert found == {'accuracy': 1.0, 'loss': pytest.approx(np.log(np.e + 2) - 1)}
  # Classes 1 and 2 are taken for each other.
  found = evaluator.compute(make_values(np.eye(3)[[0, 2, 1]]))
  share = np.sum(np.arange(num_images) % 3 == 0) / num_images
  assert found['accuracy'] == pytest.approx(share)


@pytest.mark.slow
def test_shards_are_put_together_for_the_evaluation(tf_session):
  with sharding.sharded(2):
    build_model(tf.zeros([1, 1, 3, 1]), is_training=True)
  tf_session.run(tf.global_variables_initializer())
  shards = tf_session.run(tf.global_variables())
  values = checkpoints.fetch_whole(tf_session, tf.global_variables())
  assert values.keys() == {'softmax/weights', 'softmax/biases'}
  np.testing.assert_array_equal(
    values['softmax/weights'], np.concatenate(shards[:2])
  )
  evaluator = evaluation.Evaluator(PROBLEM, make_split(6))
  values['global_step'] = 7
  assert 0 <= evaluator.compute(values)['accuracy'] <= 1


def test_large_images_are_evaluated_in_smaller_chunks():
  for size, expected in ((1, 250), (16, 250), (32, 63), (224, 1), (1024, 1)):
    images = tf.TensorSpec([size, size, 3], tf.uint8)
    assert evaluation.compute_chunk_size(images) == expected
  x = {'a': tf.TensorSpec([196000]), 'b': (tf.TensorSpec([]),)}
  assert evaluation.compute_chunk_size(x) == 1
  assert evaluation.compute_chunk_size(x['b']) == 250


def build_with_batch_norm(images, is_training):
  pixels = tf.reshape(images, [-1, 1, 1, 3])
  return layers.flatten(batch_norm.batch_norm(pixels, 'norm', is_training))


@pytest.mark.slow
def test_moving_averages_are_evaluated_by_values_and_by_checkpoint(
  tf_session, tmp_path
):
  tf.train.get_or_create_global_step()
  with sharding.sharded(2):
    build_with_batch_norm(tf.zeros([2, 1, 3, 1]), is_training=True)
  variables = {v.op.name: v for v in tf.global_variables()}
  assert 'norm/moving_mean' in variables and 'norm/gamma/part_1' in variables
  tf_session.run(tf.global_variables_initializer())
  saver = tf.train.Saver()
  evaluator = evaluation.Evaluator(
    problems.of_images(build_with_batch_norm), make_split(9)
  )
  # A class whose pixel is said to be dark on average always wins.
  for mean, expected in (([0, 0, 0], 1.0), ([-9, 0, 0], 1 / 3)):
    tf_session.run(variables['norm/moving_mean'].assign(mean))
    values = checkpoints.fetch_whole(tf_session, list(variables.values()))
    assert evaluator.compute(values)['accuracy'] == pytest.approx(expected)
    path = saver.save(tf_session, str(tmp_path / 'model.ckpt'))
    assert evaluator.compute_checkpoint(path) == evaluator.compute(values)


@pytest.mark.slow
def test_tables_of_words_and_what_a_metric_counts_in_are_ready():
  def build(images, is_training):
    words = tf.lookup.StaticHashTable(
      tf.lookup.KeyValueTensorInitializer(
        tf.constant(['a', 'b']), tf.constant([1, 2], tf.int64)
      ),
      0,
    )
    tf.get_local_variable('count', [], initializer=tf.zeros_initializer())
    count = tf.local_variables('count')[0]
    found = words.lookup(tf.fill([tf.shape(images)[0]], 'b'))
    return tf.one_hot(found, 3) + count + tf.get_variable('w', [])

  problem = problems.of_images(build)
  evaluator = evaluation.Evaluator(problem, make_split(6))
  found = evaluator.compute({'w': np.float32(0), 'global_step': 7})
  assert found['accuracy'] == pytest.approx(1 / 3)


@pytest.mark.slow
def test_an_op_that_says_the_data_end_does_not_cut_an_evaluation_short():
  def build(images, is_training):
    # TensorFlow takes StopIteration of the user's Python for that.
    ended = tf.py_func(lambda: next(iter([])), [], tf.float32)
    ended.set_shape([])
    return build_model(images, is_training) + ended

  evaluator = evaluation.Evaluator(problems.of_images(build), make_split(6))
  with pytest.raises(tf.errors.OutOfRangeError):
    evaluator.compute(make_values(np.eye(3)))
