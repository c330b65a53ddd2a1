"""free_rows: free rows are given away in order, each once."""

import types

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from distmnist.tables import free_rows, new_rows


@pytest.mark.slow
def test_rows_follow_each_other_and_end_with_the_bucket(tf_session):
  kind = new_rows.NewRows(1)
  in_bucket = kind.rows_in_bucket
  rows = types.SimpleNamespace(
    shape=[2 * in_bucket, 3], op=types.SimpleNamespace(name='user/rows')
  )
  start = new_rows.Start(kind, 'text', tf.zeros_initializer())
  places = free_rows.FreeRows(rows, start)
  keys = np.full(2 * in_bucket, new_rows.FREE)
  keys[new_rows.NUM_RESERVED + 1] = 5  # The row before it was given away, too.
  tf_session.run(places.reset(tf.constant(keys)))
  buckets = tf.placeholder(tf.int64, [None])
  found = places.find(buckets)
  first = new_rows.NUM_RESERVED

  def find(given):
    at, has_row = tf_session.run(found, {buckets: given})
    return at[has_row].tolist(), has_row.tolist()

  assert find([0, 0, 1]) == ([first + 2, first + 3, first], [True] * 3)
  rest = in_bucket - first - 4
  at, has_row = find([0] * (rest + 2))
  assert at == list(range(first + 4, in_bucket))
  assert has_row == [True] * rest + [False] * 2
  assert tf_session.run(places.counts).tolist() == [
    [in_bucket, 2, 0],
    [first + 1, 0, 0],
  ]
