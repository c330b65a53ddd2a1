"""Rows by their keys: as `keys` say, or one of 60 for a key not in them."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from distmnist.common import cli
from distmnist.tables import key_hash, key_map, new_rows

MADE = new_rows.NewRows(10)


def build(kind='whole numbers'):
  """Returns a KeyMap of a whole table, initialised by the caller."""
  start = new_rows.Start(MADE, kind, None)
  size = MADE.num_positions
  rows = tf.get_variable('rows', [size, 1], initializer=start)
  keys = tf.get_variable('keys', [size], tf.int64, start.make_keys)
  return key_map.KeyMap('user', rows, keys, start)


@pytest.mark.slow
def test_a_key_has_the_row_that_keys_say_and_others_one_of_60(tf_session):
  the_map = build()
  assert key_map.is_keys(the_map.keys)
  assert not key_map.is_keys(the_map.rows)
  given = np.array([0, -1, 2**62, 5])
  buckets = tf_session.run(key_hash.find_buckets(tf.constant(given), 60))
  common = buckets * MADE.rows_in_bucket
  tf_session.run(tf.global_variables_initializer())
  found = the_map.find(tf.constant(given))
  key_map.fill(tf_session)
  assert tf_session.run(found).tolist() == common.tolist()
  # The third key is there twice: the last row counts.
  rows = [common[0] + 3, common[1] + 2, common[2] + 5, common[2] + 7]
  tf_session.run(tf.scatter_update(the_map.keys, rows, given[[0, 1, 2, 2]]).op)
  key_map.fill(tf_session)
  assert tf_session.run(found).tolist() == [*rows[:2], rows[3], common[3]]
  # What is filled anew has nothing of before.
  tf_session.run(the_map.keys.initializer)
  key_map.fill(tf_session)
  assert tf_session.run(found).tolist() == common.tolist()


@pytest.mark.slow
def test_a_checkpoint_of_other_keys_is_named(tf_session):
  the_map = build()
  tf_session.run(tf.global_variables_initializer())
  with pytest.raises(cli.RunError, match="'user' .* text.* whole numbers"):
    the_map.check(new_rows.MARKS['text'])
  tf_session.run(the_map.keys.assign(tf.zeros_like(the_map.keys)).op)
  with pytest.raises(cli.RunError, match="'user'"):
    key_map.fill(tf_session)


def test_a_saved_model_fills_its_maps_when_it_is_loaded(tf_session):
  the_map = build()
  key_map.fill_when_loaded()
  assert tf.get_collection(tf.GraphKeys.TABLE_INITIALIZERS) == [
    the_map.filled.op
  ]


@pytest.mark.slow
def test_maps_of_two_models_in_one_process_are_two():
  names = set()
  for _ in range(2):
    with tf.Graph().as_default() as graph:
      build()
      names |= {
        op.get_attr('shared_name')
        for op in graph.get_operations()
        if op.type == 'MutableHashTableV2'
      }
  assert len(names) == 2
