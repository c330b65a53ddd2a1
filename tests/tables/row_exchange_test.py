"""The rows of a step: what moves, and in how many messages."""

import dataclasses

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from distmnist.cluster import cluster as cluster_lib
from distmnist.exchange.center import center
from distmnist.nn import layers
from distmnist.tables import sparse_table

WIDTH = 4
IDS = np.array([[5, 61, 5], [0, 99, 61]])  # Four different ones of six.


def build(member, num_rows=100, num_tables=1):
  """Builds lookups of IDS, and their gradient; returns (center, pairs)."""
  the_center = center.Center(member)
  with tf.device(member.device_setter()), the_center.scope():
    found = [
      layers.embedding(tf.constant(IDS), num_rows, WIDTH, f'table_{i}')
      for i in range(num_tables)
    ]
  loss = tf.add_n([tf.reduce_sum(x**2) for x in found])
  optimizer = tf.train.GradientDescentOptimizer(0.1)
  pairs = the_center.to_shards(the_center.compute_gradients(optimizer, loss))
  the_center.looked_up = found[0]
  return the_center, pairs


def find_messages(fetches):
  """Returns the set of (tensor, job of its reader) that cross between tasks."""

  def task_of(op):
    spec = tf.DeviceSpec.from_string(op.device)
    return spec.job or 'worker', spec.task or 0

  part = tf.graph_util.extract_sub_graph(
    tf.get_default_graph().as_graph_def(), fetches
  )
  graph = tf.get_default_graph()
  found = set()
  for node in part.node:
    op = graph.get_operation_by_name(node.name)
    for tensor in op.inputs:
      if (
        tensor.dtype != tf.resource
        and task_of(tensor.op) != task_of(op)
        and tf.get_static_value(tensor) is None
      ):
        found.add((tensor.name, task_of(op)))
  return found


@pytest.mark.slow
@pytest.mark.parametrize('num_ps, num_tables', [(1, 1), (2, 3)])
def test_a_step_sends_each_ps_two_messages_and_gets_one(
  tf_session, num_ps, num_tables
):
  hosts = tuple(f'p{i}:1' for i in range(num_ps))
  member = cluster_lib.make_cluster(hosts, ('w0:1',), 'worker', 0)
  _, pairs = build(member, num_tables=num_tables)
  names = [x.op.name for g, _ in pairs for x in (g.values, g.indices)]
  assert len(find_messages(names)) == 3 * num_ps


@pytest.mark.slow
@pytest.mark.parametrize(
  'num_rows, wire_dtype, size',
  [(100, 'float32', 4), (10_000_000, 'float16', 2)],
)
def test_bytes_are_those_of_the_different_ids_in_a_table_of_any_size(
  make_cluster, num_rows, wire_dtype, size
):
  cluster = make_cluster(2, 1)
  member = dataclasses.replace(cluster.worker(0), wire_dtype=wire_dtype)
  with tf.Graph().as_default():
    the_center, _ = build(member, num_rows)
    with tf.Session(cluster.servers[0].target) as session:
      found = session.run(the_center.count_bytes())
  assert found == (4 * WIDTH * size, 4 * (WIDTH * size + 8))


@pytest.mark.slow
def test_rows_and_gradients_are_those_of_their_ids(make_cluster):
  cluster = make_cluster(2, 1)
  the_center, pairs = build(cluster.worker(0))
  found = the_center.looked_up
  shards = [shard for _, shard in pairs]
  assert [tf.DeviceSpec.from_string(s.device).task for s in shards] == [0, 1]
  with tf.Session(cluster.servers[0].target) as session:
    session.run(tf.global_variables_initializer())
    rows, gradients, parts = session.run(
      [found, [(g.values, g.indices) for g, _ in pairs], shards]
    )
  table = np.concatenate(parts)
  np.testing.assert_array_equal(
    rows, table[sparse_table.find_positions(IDS, 100)]
  )
  values = np.concatenate([v for v, _ in gradients])
  where = np.concatenate([gradients[0][1], gradients[1][1] + len(parts[0])])
  assert where.tolist() == sorted(
    sparse_table.find_positions(i, 100) for i in {0, 5, 61, 99}
  )
  ids = sparse_table.find_id(where, sparse_table.count_positions(100))
  times = [2 if i in (5, 61) else 1 for i in ids]
  np.testing.assert_allclose(
    values, 2 * table[where] * np.array(times)[:, np.newaxis], rtol=1e-6
  )
