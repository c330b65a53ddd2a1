import pytest
import tensorflow.compat.v1 as tf

from distmnist.cluster import cluster as cluster_lib
from distmnist.exchange.rounds import sync_replicas

CLUSTER = cluster_lib.make_cluster(('p:1',), ('v:1', 'w:1'), 'worker', 1)


class Built:
  """The ops of a worker that pushes the gradient of one shard."""

  def __init__(self):
    with tf.device(CLUSTER.device_setter()):
      self.global_step = tf.train.get_or_create_global_step()
      self.shard = tf.get_variable('w', [3])
    self.replicas = sync_replicas.SyncReplicas(
      CLUSTER, tf.train.GradientDescentOptimizer(0.5), 2, self.global_step
    )
    self.new_step, self.staleness = self.replicas.push_and_wait(
      self, [tf.ones([3])], list
    )

  def to_shards(self, gradients):
    """As center.Center, of gradients that are on the ps already."""
    with tf.device(self.shard.device):
      return [(tf.identity(gradients[0]), self.shard)]


@pytest.fixture
def built():
  with tf.Graph().as_default():
    yield Built()


def find_ops(kind):
  operations = tf.get_default_graph().get_operations()
  return [op for op in operations if op.type.endswith(kind)]


def test_the_gradients_go_into_the_accumulators_of_the_optimizer(built):
  names = {
    op.get_attr('shared_name') for op in find_ops('ConditionalAccumulator')
  }
  assert names == {b'w:0/grad_accum'}
  pushes = find_ops('AccumulatorApplyGradient')
  assert pushes
  assert {op.device for op in pushes} == {built.shard.device}


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
