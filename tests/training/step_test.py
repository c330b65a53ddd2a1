"""step: the graph of a step, with several towers a worker as with one.

The towers are logical devices of the CPU. Four of them with a part of the
batch each are to be one with the whole of it.
"""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from distmnist.cluster import cluster
from distmnist.common import registry
from distmnist.common.names import MODELS, STRATEGIES
from distmnist.data import input_pipeline
from distmnist.training import step as step_lib
from distmnist.training.batches import batch_table
from distmnist.transport import strategy
from tests.support import in_process, problems
from tests.support.towers import (
  CONFIG,
  IMAGES,
  LABELS,
  NUM_STEPS,
  NUM_TOWERS,
  PART,
  Towers,
  make_member,
)


@pytest.fixture(scope='module')
def ps_and_worker():
  """(hosts, target) of a ps and a worker with four CPU devices."""
  ports = in_process.pick_ports(2)
  hosts = tuple((f'127.0.0.1:{port}',) for port in ports)
  member = make_member(cluster.Cluster, hosts)
  ps = tf.train.Server(member.spec(), 'ps', 0)
  worker = tf.train.Server(member.spec(), 'worker', 0, config=CONFIG)
  yield hosts, worker.target
  del ps


def build(member, name):
  """Returns (images, labels, step.Step, rule) of a small net."""
  tf.set_random_seed(3)
  module = registry.load(MODELS, 'mlp')
  rule = registry.load(STRATEGIES, name).make(member)
  images = tf.placeholder(tf.float32, IMAGES.shape[1:])
  labels = tf.placeholder(tf.int32, LABELS.shape[1:])
  problem = problems.of_images(module.make(3))
  step = step_lib.build_step(
    member, rule, problem, [input_pipeline.Slice((images, labels))]
  )
  return images, labels, step, rule


def run(member, name, target=''):
  """Trains some steps; returns (losses, accuracies, {name: value})."""
  with tf.Graph().as_default():
    images, labels, step, rule = build(member, name)
    assert rule.hooks(in_process.NoStop()) == []
    with tf.Session(target, config=CONFIG) as session:
      session.run(tf.global_variables_initializer())
      rng = np.random.default_rng(1)
      for variable in step.center:
        variable.load(rng.normal(size=variable.shape) * 0.1, session)
      session.run(tf.local_variables_initializer())
      found = [
        session.run(
          [step.loss, step.metrics['accuracy'], step.update.train_op],
          {images: IMAGES[i], labels: LABELS[i]},
        )
        for i in range(NUM_STEPS)
      ]
      losses, correct, _ = zip(*found, strict=True)
      values = {v.op.name: session.run(v) for v in step.center}
  return losses, correct, values


def check_equal(found, wanted):
  np.testing.assert_allclose(found[0], wanted[0], rtol=1e-5)
  np.testing.assert_allclose(found[1], wanted[1], rtol=1e-6)
  assert found[2].keys() == wanted[2].keys()
  for name, value in wanted[2].items():
    np.testing.assert_allclose(found[2][name], value, rtol=1e-4, atol=1e-6)


FLAGS = (
  '--learning_rate=0.1',
  '--optimizer=momentum',
  '--communication_period=1',
  '--num_gpus=0',
)


@pytest.mark.slow
@pytest.mark.parametrize('name', ['ring_allreduce', 'downpour'])
def test_towers_of_one_process_are_one_device_with_the_whole_batch(
  set_flags, name
):
  set_flags(*FLAGS)
  check_equal(
    run(make_member(Towers), name),
    run(make_member(cluster.Cluster), name),
  )


@pytest.mark.daily(but=['async_sgd'])
@pytest.mark.slow
@pytest.mark.parametrize('name', ['async_sgd', 'agn'])
def test_towers_of_a_worker_are_one_device_with_the_whole_batch(
  set_flags, ps_and_worker, name
):
  set_flags(*FLAGS)
  hosts, target = ps_and_worker
  check_equal(
    run(make_member(Towers, hosts), name, target),
    run(make_member(cluster.Cluster, hosts), name, target),
  )


@pytest.mark.slow
@pytest.mark.parametrize('name', ['async_sgd', 'downpour'])
def test_the_center_is_on_the_ps_and_each_tower_on_its_device(set_flags, name):
  set_flags(*FLAGS)
  member = make_member(Towers, (('p:1',), ('w:1',)))
  with tf.Graph().as_default() as graph:
    _, _, step, _ = build(member, name)
    assert {v.device for v in step.center} == {'/job:ps/task:0/device:CPU:0'}
    assert len(step.center) == 4
    products = [op for op in graph.get_operations() if op.type == 'MatMul']
    places = [op.device for op in products]
  # Two forth and four back, on the device of the tower.
  assert [places.count(device) for device in member.tower_devices] == [6] * 4
  assert len(places) == 6 * NUM_TOWERS


DEALING = batch_table.Dealing(
  num_workers=1,
  batch_size=NUM_TOWERS * PART,
  batches_per_push=1,
  last_step=10,
  is_lock_step=False,
)


def build_dealt(rule, member, dealing):
  """Returns the step.Step of a rule that is told of batches."""
  images = tf.placeholder(tf.float32, IMAGES.shape[1:])
  labels = tf.placeholder(tf.int32, LABELS.shape[1:])
  problem = problems.of_images(registry.load(MODELS, 'softmax').make(3))
  return step_lib.build_step(
    member,
    rule,
    problem,
    [input_pipeline.Slice((images, labels))],
    dealing=dealing,
  )


@pytest.mark.slow
@pytest.mark.parametrize('is_lock_step', [False, True])
def test_only_leased_batches_are_marked(tf_session, set_flags, is_lock_step):
  set_flags('--num_gpus=0')
  member = make_member(cluster.Cluster)
  rule = registry.load(STRATEGIES, 'async_sgd').make(member)
  dealing = DEALING._replace(is_lock_step=is_lock_step)
  step = build_dealt(rule, member, dealing)
  marked = len(rule.mark_done([step.update.train_op.op])) == 2
  assert marked == (not is_lock_step)
  assert step.table.is_marked
  # The table is the dispatcher's, and no variable of the model.
  assert [v.op.name for v in step.center] == [
    'softmax/weights',
    'softmax/biases',
  ]


class Forgetful(strategy.Strategy):
  """Counts an update, and does not say that its batches are done."""

  def minimize(self, loss, make_optimizer, global_step):
    new_step, staleness = strategy.count_update(
      global_step, [loss], global_step.read_value()
    )
    return strategy.Update(new_step, staleness, 0, 0)


@pytest.mark.slow
def test_a_rule_that_does_not_mark_its_batches_is_refused(
  tf_session, set_flags
):
  set_flags('--num_gpus=0')
  member = make_member(cluster.Cluster)
  with pytest.raises(
    NotImplementedError, match='^Forgetful.minimize does not call mark_done: '
  ):
    build_dealt(Forgetful(member), member, DEALING)
