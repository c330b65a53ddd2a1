import pytest
import tensorflow.compat.v1 as tf

from distmnist.cluster import cluster as cluster_lib
from distmnist.exchange.rounds import sync_replicas

CLUSTER = cluster_lib.make_cluster(('p:1',), ('v:1', 'w:1'), 'worker', 1)


class Center:
  """As center.Center, of gradients that are on the ps already."""

  def __init__(self, shard):
    self._shard = shard

  def to_shards(self, gradients):
    with tf.device(self._shard.device):
      return [(tf.identity(gradients[0]), self._shard)]

  def find_units(self):
    return [[0]]


@pytest.mark.slow
def test_the_gradients_go_into_the_accumulators_of_the_optimizer(tf_session):
  with tf.device(CLUSTER.device_setter()):
    global_step = tf.train.get_or_create_global_step()
    shard = tf.get_variable('w', [3])
  replicas = sync_replicas.SyncReplicas(
    CLUSTER, tf.train.GradientDescentOptimizer(0.5), 2, global_step
  )
  replicas.push_and_wait(Center(shard), [tf.ones([3])], list)
  ops = tf.get_default_graph().get_operations()
  names = {
    op.get_attr('shared_name')
    for op in ops
    if op.type.endswith('ConditionalAccumulator')
  }
  assert names == {b'w:0/grad_accum'}
  pushed_on = {
    op.device for op in ops if op.type.endswith('AccumulatorApplyGradient')
  }
  assert pushed_on == {shard.device}


def test_a_creator_leaves_variables_of_the_center_alone():
  made = []

  def create(**kwargs):
    made.append(kwargs)
    return 'made'

  local = [tf.GraphKeys.LOCAL_VARIABLES]
  make = sync_replicas._make_unless_local
  assert make('token', create, collections=local) == 'token'
  assert make('token', create, collections=None) == 'made'
  assert made == [{'collections': None}]
