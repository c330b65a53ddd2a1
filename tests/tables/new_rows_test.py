"""How many rows a table has for its capacity, and what they begin with."""

import math

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from distmnist.tables import new_rows


@pytest.mark.parametrize('capacity', [1, 1000, 10**9])
def test_a_bucket_is_full_with_a_chance_below_a_millionth(capacity):
  made = new_rows.NewRows(capacity)
  room, mean = made.rows_in_bucket - new_rows.NUM_RESERVED, capacity / 60
  terms = (
    math.exp(i * math.log(mean) - mean - math.lgamma(i + 1))
    for i in range(room + 1, room + 1 + int(20 * mean**0.5) + 100)
  )
  assert 60 * sum(terms) < 1e-6
  assert made.num_positions == 60 * made.rows_in_bucket


def test_keys_begin_free_and_tell_what_they_are_of(tf_session):
  start = new_rows.Start(new_rows.NewRows(1), 'text', None)
  size = start.new_rows.rows_in_bucket
  keys = tf_session.run(start.make_keys([2 * size])).reshape(2, size)
  assert keys[:, 0].tolist() == [new_rows.MARKS['text']] * 2
  assert (keys[:, 1:] == new_rows.FREE).all()
  assert not tf_session.run(start([3, 2])).any()


@pytest.mark.parametrize(
  ('initializer', 'mean', 'deviation', 'ends'),
  [
    (tf.random_uniform_initializer(-1, 3), 1, 4 / 12**0.5, (-1, 3)),
    (tf.random_normal_initializer(1, 2), 1, 2, (-12, 14)),
    # Of a normal distribution cut off at two deviations.
    (tf.truncated_normal_initializer(1, 2), 1, 2 * 0.8796, (-3, 5)),
    (tf.constant_initializer(7), 7, 0, (7, 7)),
    (tf.zeros_initializer(), 0, 0, (0, 0)),
  ],
)
def test_rows_are_drawn_as_an_initializer_says(
  tf_session, initializer, mean, deviation, ends
):
  assert new_rows.is_initializer(initializer)
  start = new_rows.Start(new_rows.NewRows(1), 'text', initializer)
  keys = tf.constant(np.arange(20_000))
  rows = tf_session.run(start.make_rows(keys, 2, 5))
  assert rows.shape == (20_000, 2)
  assert rows.dtype == np.float32
  assert rows.mean() == pytest.approx(mean, abs=0.05)
  assert rows.std() == pytest.approx(deviation, abs=0.05)
  assert ends[0] <= rows.min() <= rows.max() <= ends[1]


def test_what_cannot_be_drawn_by_key_is_told_apart():
  assert not new_rows.is_initializer(tf.glorot_uniform_initializer())
  assert not new_rows.is_initializer(lambda shape: tf.zeros(shape))
