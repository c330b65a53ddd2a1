"""The slices of a shard: how large they are, and where they lie."""

import tensorflow.compat.v1 as tf

from distmnist.tables import shard_slices


def make_shards():
  return list(
    tf.get_variable(
      'x', [100, 3], partitioner=tf.fixed_size_partitioner(2), dtype=tf.float32
    )
  )


def test_slices_are_all_rows_of_a_shard_and_no_more_bytes_than_said(tf_session):
  first, second = make_shards()
  slices = list(shard_slices.cut(first, 200))
  assert [s.begin for s in slices] == [0, *(s.end for s in slices[:-1])]
  assert slices[-1].end == 50
  assert max(s.end - s.begin for s in slices) == 200 // (3 * 4 + 8)
  assert slices[1] == (10, 20, 10, '100 3 10,10:-')
  assert list(shard_slices.cut(second, 200))[1] == (10, 20, 60, '100 3 60,10:-')


def test_a_row_is_never_cut(tf_session):
  assert len(list(shard_slices.cut(make_shards()[0], 1))) == 50


def test_a_shard_knows_its_place_and_its_bytes(tf_session):
  _, second = make_shards()
  assert shard_slices.find_place(second) == ('x', [100, 3], 50)
  assert shard_slices.count_bytes(second) == 50 * 3 * 4
  whole = tf.get_variable('y', [4])
  assert shard_slices.find_place(whole) == ('y', [4], 0)
