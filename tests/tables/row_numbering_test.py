"""Keys of the step: each once, shard by shard, and the rows that they are."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from distmnist.exchange.center import center
from distmnist.nn import layers
from distmnist.tables import key_hash, row_numbering

GIVEN = {'a': [5, 61, 5, 0], 'b': [61, 99]}


def build(member, num_rows):
  """Returns the numbering of tables a and b."""
  the_center = center.Center(member)
  with tf.device(member.device_setter()), the_center.scope():
    for name, ids in GIVEN.items():
      layers.embedding(tf.constant(ids, tf.int64), num_rows, 2, name)
  tables = list(the_center.rows.tables.values())
  return tables[0].make_numbering(tables)


@pytest.mark.slow
def test_positions_of_a_shard_follow_each_other(make_cluster):
  cluster = make_cluster(3, 1)
  with tf.Graph().as_default():
    numbering = build(cluster.worker(0), 120)
    with tf.device('/job:worker/task:0'):
      fetches = numbering.find_keys()
    with tf.Session(cluster.servers[0].target) as session:
      keys, places, numbers = session.run(fetches)
  assert keys.tolist() == sorted(set(keys))
  assert numbers.sum() == len(keys) == 5
  assert len(numbers) == 2 * 3
  assert len(set(keys[places.of_ids])) == 5
  assert places.of_ids[0] == places.of_ids[2]


@pytest.mark.slow
def test_keys_go_to_the_ps_of_their_bucket(make_cluster):
  cluster = make_cluster(3, 1)
  with tf.Graph().as_default():
    numbering = build(cluster.worker(0), layers.NewRows(10))
    with tf.device('/job:worker/task:0'):
      fetches = numbering.find_keys()
      ids = tf.constant(sorted({*GIVEN['a'], *GIVEN['b']}), tf.int64)
      buckets = key_hash.find_buckets(ids, 60)
    with tf.Session(cluster.servers[0].target) as session:
      (keys, places, numbers), ids, buckets = session.run(
        [fetches, ids, buckets]
      )
  assert keys[places.of_ids].tolist() == GIVEN['a'] + GIVEN['b']
  assert len(keys) == 5
  owner = {i: b * 3 // 60 for i, b in zip(ids, buckets, strict=True)}
  names = [s.op.name for _, shards in numbering.places for s in shards]
  for name, part in zip(
    names, np.split(keys, np.cumsum(numbers)[:-1]), strict=True
  ):
    table, _, index = name.partition('/rows')
    index = int(index.removeprefix('/part_') or 0)
    assert sorted(part) == sorted(
      i for i in set(GIVEN[table]) if owner[i] == index
    )


def test_sort_keeps_what_each_place_is_of(tf_session):
  values, places = tf_session.run(
    row_numbering.sort(
      tf.constant([7, 8, 9]),
      tf.constant([2, 0, 1, 2]),
      tf.constant([1, 2, 0]),
      3,
    )
  )
  assert values.tolist() == [9, 7, 8]
  assert values[places].tolist() == [9, 7, 8, 9]
