"""--gradient_accumulation: K batches of b are one of K b, under each rule."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from distmnist.cluster import cluster
from distmnist.common import registry
from distmnist.common.names import STRATEGIES
from distmnist.data import input_pipeline
from distmnist.exchange.copies import local_copies
from distmnist.lifecycle import task as task_lib
from distmnist.logdir import checkpoints
from distmnist.nn import batch_norm
from distmnist.training import flag_checks, worker_graph
from distmnist.training import step as step_lib
from distmnist.training.problems import problem as problem_lib
from distmnist.training.problems import problem_data
from tests.strategies.battery_test import each_strategy
from tests.support import in_process, problems, towers
from tests.training.worker_loop_test import train  # noqa: F401  A fixture.

pytestmark = pytest.mark.slow

NUM_STEPS = 4
FLAGS = (
  *problems.FEW_IMAGES,
  '--model=mlp',
  '--optimizer=momentum',
  '--learning_rate=0.1',
  '--communication_period=2',
  '--clip_norm=0.5',
)
SLICED = '--batch_size=3', '--gradient_accumulation=4'
WHOLE = '--batch_size=12', '--gradient_accumulation=1'


def run_steps(cluster, name, set_flags, words):
  """Returns what the model of one worker computes with, after some steps."""
  set_flags(*FLAGS, f'--strategy={name}', *words)
  member = cluster.worker(0)
  task = task_lib.Task(member, in_process.NoStop())
  splits = problem_data.load_training_splits(problem_lib.from_flags())
  choice = flag_checks.check(member, *(s.num_examples for s in splits))
  with tf.Graph().as_default():
    graph = worker_graph.build(task, choice, splits[0], seed=3)
    seen = local_copies.get_all() or graph.step.center
    hooks = choice.strategy.hooks(in_process.NoStop())
    fetches = [graph.step.loss, graph.step.metrics, graph.step.update.train_op]
    with cluster.make_session(0, hooks) as session:
      losses = []
      for number in range(NUM_STEPS):
        row = np.arange(12 * number, 12 * (number + 1))
        fed = {graph.fed: [[row[0], *row]]}
        loss, metrics, _ = session.run(fetches, fed)
        losses.append([loss, metrics['accuracy']])
      values = session.run([[*seen, *graph.step.center]], {})[0]
  cluster.reset()
  return losses, values


@pytest.mark.daily(but=['sync_sgd'])
@each_strategy
def test_slices_are_one_device_with_the_whole_batch(
  make_cluster, set_flags, name
):
  cluster = make_cluster(0 if name == 'ring_allreduce' else 1, 1)
  losses, values = run_steps(cluster, name, set_flags, SLICED)
  wanted, whole = run_steps(cluster, name, set_flags, WHOLE)
  np.testing.assert_allclose(losses, wanted, rtol=1e-5)
  assert len(values) == len(whole)
  for found, expected in zip(values, whole, strict=True):
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_a_training_reads_the_images_of_the_whole_batch(train, tmp_path):  # noqa: F811
  run = '--steps_per_run=3', '--train_steps=7'
  train(*run, *WHOLE, f'--logdir={tmp_path}/whole')
  train(*run, *SLICED, f'--logdir={tmp_path}/sliced')
  found, wanted = (
    tf.train.load_checkpoint(checkpoints.find_latest(tmp_path / name))
    for name in ('sliced', 'whole')
  )
  names = wanted.get_variable_to_shape_map()
  assert found.get_variable_to_shape_map() == names
  for name in names:
    np.testing.assert_allclose(
      found.get_tensor(name), wanted.get_tensor(name), rtol=1e-5, atol=1e-6
    )


def test_a_run_goes_on_with_another_number_of_slices(train, tmp_path):  # noqa: F811
  words = '--batch_size=3', f'--logdir={tmp_path}'
  train(*words, '--gradient_accumulation=2', '--train_steps=3')
  train(*words, '--gradient_accumulation=4', '--train_steps=5')
  # The second life begins at step 3, after 3 * 6 images, and takes 12 a step.
  reader = tf.train.load_checkpoint(checkpoints.find_latest(tmp_path))
  table = reader.get_tensor('stream')
  assert table[0].tolist() == [3, 18, 12]


def make_slices(images, labels):
  """Returns two input_pipeline.Slice of arrays."""
  found = []
  for x, y in zip(np.split(images, 2), np.split(labels, 2), strict=True):
    place = tf.identity(tf.constant(0, tf.int64))
    with tf.control_dependencies([place]):
      batch = tf.identity(tf.constant(x)), tf.constant(y)
    found.append(input_pipeline.Slice(batch, place, place.op))
  return found


def build_sliced_step(build_model, kind, name='async_sgd'):
  tf.set_random_seed(3)
  member = towers.make_member(kind)
  rule = registry.load(STRATEGIES, name).make(member)
  slices = make_slices(towers.IMAGES[0], towers.LABELS[0])
  problem = problems.of_images(build_model)
  return step_lib.build_step(member, rule, problem, slices)


def test_batch_norm_moves_its_averages_slice_by_slice(set_flags):
  set_flags()
  images = towers.IMAGES[0]

  def build_model(images, is_training):
    normed = batch_norm.batch_norm(images, 'norm', is_training)
    weights = tf.get_variable('weights', [64, 3])
    return tf.reshape(normed, [-1, 64]) @ weights

  with tf.Graph().as_default(), tf.Session() as session:
    step = build_sliced_step(build_model, cluster.Cluster)
    [moving] = [v for v in step.center if v.op.name == 'norm/moving_mean']
    session.run(tf.global_variables_initializer())
    session.run(step.update.train_op)
    found = session.run(moving)
  expected = 0.0
  for part in np.split(images, 2):
    expected = 0.9 * expected + 0.1 * part.mean()
  np.testing.assert_allclose(found, [expected], rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize('name', ['async_sgd', 'sync_sgd'])
def test_batch_norm_moves_its_averages_once_for_all_towers(set_flags, name):
  set_flags()

  def build_model(images, is_training):
    normed = batch_norm.batch_norm(images, 'norm', is_training)
    weights = tf.get_variable('weights', [64, 3])
    return tf.reshape(normed, [-1, 64]) @ weights

  with tf.Graph().as_default():
    member = towers.make_member(towers.Towers)
    rule = registry.load(STRATEGIES, name).make(member)
    images, labels = towers.IMAGES[0], towers.LABELS[0]
    place = tf.identity(tf.constant(0, tf.int64))
    batch = tf.constant(images), tf.constant(labels)
    one = input_pipeline.Slice(batch, place, place.op)
    problem = problems.of_images(build_model)
    step = step_lib.build_step(member, rule, problem, [one])
    hooks = rule.hooks(in_process.NoStop())
    moving = [v for v in step.center if '/moving_' in v.op.name]
    creator = tf.train.ChiefSessionCreator(config=towers.CONFIG)
    with tf.train.MonitoredSession(creator, hooks) as session:
      session.run(step.update.train_op)
      mean, variance = session.run(moving)
  parts = np.split(images, towers.NUM_TOWERS)
  np.testing.assert_allclose(mean, [0.1 * images.mean()], rtol=1e-5)
  of_parts = np.mean([part.var(ddof=1) for part in parts])
  np.testing.assert_allclose(variance, [0.9 + 0.1 * of_parts], rtol=1e-5)


def test_towers_take_their_part_of_each_slice(set_flags):
  set_flags('--num_gpus=0')
  build_model = registry.load('distmnist.models', 'softmax').make(3)
  found = []
  for kind in (towers.Towers, cluster.Cluster):
    with (
      tf.Graph().as_default() as graph,
      tf.Session(config=towers.CONFIG) as session,
    ):
      step = build_sliced_step(build_model, kind, 'downpour')
      places = {op.device for op in graph.get_operations()}
      assert (len([p for p in places if 'CPU' in p]) > 1) == (
        kind is towers.Towers
      )
      session.run(tf.global_variables_initializer())
      session.run(tf.local_variables_initializer())
      session.run(step.update.train_op)
      found.append(session.run(step.center))
  for mine, wanted in zip(*found, strict=True):
    np.testing.assert_allclose(mine, wanted, rtol=1e-5, atol=1e-7)
