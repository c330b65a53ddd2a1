"""keras_metrics: what a user's own Keras metric may keep in its variables."""

import keras
import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from distmnist import runtime
from distmnist.training.problems import keras_metrics

Y, OUTPUTS = np.float32([[1], [2], [4]]), np.float32([[3], [3], [3]])


class Own(keras.metrics.Metric):
  """Keeps one number, which is also the result."""

  def __init__(self, update):
    super().__init__(name='own')
    self._update = update
    self.kept = self.add_weight(name='kept', initializer='zeros')

  def update_state(self, y, outputs, sample_weight=None):
    self.kept.assign(self._update(self.kept, keras.ops.abs(y - outputs)))

  def result(self):
    return self.kept


def make(given):
  with tf.Graph().as_default():
    y, outputs = (tf.placeholder(tf.float32, [None, 1]) for _ in range(2))
    with runtime.eagerly():
      return keras_metrics.make(given, y, outputs)[1]


def make_own(update):
  with runtime.eagerly():
    return Own(update)


def test_a_result_that_is_a_variable_is_that_of_the_data(tf_session):
  metric = make(make_own(lambda kept, gaps: kept + keras.ops.sum(gaps)))
  total = keras_metrics.count(metric, tf.constant(Y), tf.constant(OUTPUTS))
  [state], value = tf_session.run([total.states, total.value])
  assert state == value == 4 and not total.is_mean
  assert keras_metrics.finish(metric, [np.float32(7)]) == 7


class Started(Own):
  """Its variable begins at 5."""

  def reset_state(self):
    self.kept.assign(5.0)


def test_what_a_variable_begins_with_counts_once(tf_session):
  with runtime.eagerly():
    metric = Started(lambda kept, gaps: kept + keras.ops.sum(gaps))
  metric = make(metric)
  total = keras_metrics.count(metric, tf.constant(Y), tf.constant(OUTPUTS))
  [added], value = tf_session.run([total.states, total.value])
  assert (added, value) == (4, 9)
  assert keras_metrics.finish(metric, [added + added]) == 13


@pytest.mark.parametrize(
  'update',
  [
    lambda kept, gaps: keras.ops.maximum(kept, keras.ops.max(gaps)),
    lambda kept, gaps: 0.9 * kept + keras.ops.mean(gaps),
    lambda kept, gaps: keras.ops.mean(gaps),
  ],
)
def test_what_is_no_sum_is_refused(update):
  metric = make_own(update)
  with pytest.raises(ValueError, match=r"'own' \(Own\) has variables that are"):
    make(metric)


@pytest.mark.parametrize('given', ['mae', 'AUC', 'R2Score', 'F1Score'])
def test_those_of_keras_are_taken(given):
  assert isinstance(make(given), keras.metrics.Metric)


@pytest.mark.parametrize(
  'given, is_mean',
  [('mae', True), ('accuracy', True), ('AUC', False), ('R2Score', False)],
)
def test_a_mean_over_the_examples_is_known(given, is_mean):
  metric = make(given)
  with tf.Graph().as_default():
    total = keras_metrics.count(metric, tf.constant(Y), tf.constant(OUTPUTS))
  assert total.is_mean == is_mean
