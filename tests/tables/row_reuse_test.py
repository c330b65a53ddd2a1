"""row_reuse: the hand goes round a bucket, and takes old rows alone.

With the keys and their rows it is tested in key_shard_test.py.
"""

import types

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from distmnist.tables import new_rows, row_reuse

KIND = new_rows.NewRows(600, unseen_steps=5)
ROOM = KIND.rows_in_bucket - new_rows.NUM_RESERVED


@pytest.fixture
def reuse(tf_session):
  rows = types.SimpleNamespace(
    shape=[2 * KIND.rows_in_bucket, 3],
    op=types.SimpleNamespace(name='user/rows'),
  )
  start = new_rows.Start(KIND, 'text', tf.zeros_initializer())
  made = row_reuse.RowReuse(rows, start)
  tf_session.run(made.reset())
  return made


@pytest.mark.slow
def test_the_oldest_of_a_few_rows_is_taken_and_the_hand_goes_on(
  tf_session, reuse
):
  rows = tf.placeholder(tf.int64, [None])
  touch = reuse.touch(rows)
  buckets, ranks = (tf.placeholder(tf.int64, [None]) for _ in range(2))
  choose = reuse.choose(buckets, ranks)
  first = new_rows.NUM_RESERVED
  # All but one of each window were seen one step ago, and that one never.
  old = np.arange(first + 3, KIND.rows_in_bucket, 8)
  for step in range(5):
    seen = np.setdiff1d(np.arange(first, KIND.rows_in_bucket), old)
    tf_session.run(touch, {rows: seen if step else []})
  feed = {buckets: [0, 0], ranks: [0, 1]}
  places, is_old = tf_session.run(choose, feed)
  assert places.tolist() == old[:2].tolist() and is_old.all()
  places, is_old = tf_session.run(choose, feed)
  assert places.tolist() == old[2:4].tolist() and is_old.all()
  tf_session.run(touch, {rows: old})
  many = ROOM // 8 + 2
  places, is_old = tf_session.run(
    choose, {buckets: [0] * many, ranks: np.arange(many)}
  )
  assert not is_old.any()
  # Another bucket has a hand and ages of its own; none is taken twice.
  places, is_old = tf_session.run(
    choose, {buckets: [1] * many, ranks: np.arange(many)}
  )
  assert is_old.tolist() == [True] * (ROOM // 8) + [False] * 2
  assert len(set(places[is_old])) == ROOM // 8


def test_while_rows_are_held_none_is_taken(tf_session, reuse):
  touch = reuse.touch(tf.constant([], tf.int64))
  zero = tf.constant([0], tf.int64)
  choose = reuse.choose(zero, zero)
  reuse.add_hold(tf.no_op)
  for _ in range(5):
    tf_session.run(touch)
  with pytest.raises(KeyError), row_reuse.held(tf_session):
    assert not tf_session.run(choose)[1]
    with row_reuse.held(tf_session):
      pass
    assert not tf_session.run(choose)[1]
    raise KeyError
  assert tf_session.run(choose)[1]
