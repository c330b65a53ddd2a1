import dataclasses
import types

import pytest
import tensorflow.compat.v1 as tf

from distmnist.cluster import cluster as cluster_lib
from distmnist.common import cli, console
from distmnist.exchange.steps import graph_warmup
from distmnist.lifecycle import task as task_lib
from distmnist.models import softmax
from distmnist.nn import batch_norm, layers, schedules
from distmnist.training import flag_checks, worker_graph
from distmnist.training.problems import problem as problem_lib
from distmnist.training.problems import problem_data
from tests.support import in_process, problems

WORKER = cluster_lib.make_cluster(('p:1', 'q:1'), ('v:1', 'w:1'), 'worker', 0)


@pytest.fixture
def build(set_flags):
  """Returns build(cluster, *flags) -> (WorkerGraph, task, choice, lines)."""

  def build_graph(cluster, *words):
    set_flags(*problems.FEW_IMAGES, '--model=softmax', *words)
    lines = []
    console.print_logs(lines.append)
    task = task_lib.Task(cluster, in_process.NoStop())
    train_split, validation = problem_data.load_training_splits(
      problem_lib.from_flags()
    )
    choice = flag_checks.check(
      cluster, train_split.num_examples, validation.num_examples
    )
    with tf.Graph().as_default():
      graph = worker_graph.build(task, choice, train_split, seed=3)
    return graph, task, choice, lines

  return build_graph


@pytest.mark.slow
def test_a_graph_has_the_step_and_says_what_moves(build):
  graph, task, choice, lines = build(WORKER, '--batch_size=20')
  assert graph.warmup is None
  assert graph.fed.shape.as_list() == [None, 21]
  assert graph.step.loss.shape == []
  assert {v.device for v in graph.step.center} == {
    '/job:ps/task:0/device:CPU:0',
    '/job:ps/task:1/device:CPU:0',
  }
  assert [line.partition(':')[0] for line in lines] == [
    'bytes held',
    'bytes a step',
  ]
  assert worker_graph.describe_task(task, choice).startswith(
    'worker 0 at v:1: async_sgd, 2 ps, 2 workers; softmax on synthetic, '
  )


@pytest.mark.slow
def test_one_process_has_nothing_to_move(build):
  graph, _, _, lines = build(cluster_lib.Cluster())
  assert lines == []
  assert graph.step.global_step.device == '/device:CPU:0'


@pytest.mark.slow
def test_rules_that_need_it_have_a_warm_up(build):
  graph, *_ = build(WORKER, '--strategy=downpour')
  assert isinstance(graph.warmup, graph_warmup.Warmup)


@pytest.mark.slow
def test_a_warm_up_holds_back_what_a_model_updates_itself(build, monkeypatch):
  updates = []

  def make(num_classes):
    def build_net(images, is_training):
      del is_training
      count = tf.get_variable('count', initializer=0, trainable=False)
      updates.append(count.assign_add(1, read_value=False))
      tf.add_to_collection(tf.GraphKeys.UPDATE_OPS, updates[-1])
      return layers.dense(layers.flatten(images), num_classes, 'softmax')

    return build_net

  monkeypatch.setattr(softmax, 'make', make)
  build(WORKER, '--strategy=downpour')
  [held] = updates[0].control_inputs
  assert held.inputs[0].op.type == 'Switch'


@pytest.mark.slow
def test_batch_norm_under_local_steps_is_warned_of_by_the_chief(
  build, monkeypatch
):
  def make(num_classes):
    def build_net(images, is_training):
      normed = batch_norm.batch_norm(images, 'norm', is_training)
      return layers.dense(layers.flatten(normed), num_classes, 'softmax')

    return build_net

  monkeypatch.setattr(softmax, 'make', make)
  *_, lines = build(WORKER, '--strategy=downpour', '--batch_size=2')
  assert 'batch norm' in lines[-1] or 'averages' in lines[-1]


@pytest.mark.slow
def test_a_center_that_is_not_on_a_ps_is_refused(build, monkeypatch):
  monkeypatch.setattr(cluster_lib.Cluster, 'device_setter', lambda *_: '/cpu:0')
  with pytest.raises(cli.RunError, match='must sit on a ps to be shared'):
    build(WORKER)


@pytest.fixture
def find_schedule(build, monkeypatch):
  """Returns find_schedule(cluster, *flags) -> (Schedule, Plan) of a worker."""
  found = []

  def note(schedule, *given):
    found.append(schedule)
    return make_rate(schedule, *given)

  make_rate = schedules.Schedule.build
  monkeypatch.setattr(schedules.Schedule, 'build', note)

  def find(cluster, *words):
    _, _, choice, _ = build(cluster, *words)
    return found[-1], choice.plan

  return find


@pytest.mark.slow
@pytest.mark.parametrize('over', ['shard', 'dataset'])
def test_the_epochs_of_a_schedule_are_those_of_the_training(
  find_schedule, over
):
  schedule, plan = find_schedule(
    *(WORKER, '--batch_size=5', '--epochs=10', f'--epochs_over={over}'),
    *('--lr_schedule=step', '--lr_schedule_unit=epochs', '--lr_boundaries=5'),
  )
  assert schedule.boundaries == [plan.last_step / 2]


@pytest.mark.daily(but=['words0-6', 'words1-3', 'words3-1', 'words7-8'])
@pytest.mark.parametrize(
  ('words', 'scale'),
  [
    (['--strategy=sync_sgd', '--gradient_accumulation=3'], 6),
    (['--strategy=async_sgd', '--gradient_accumulation=3'], 3),
    (['--strategy=sync_sgd'], 2),
    (['--strategy=sync_sgd', '--replicas_to_aggregate=1'], 1),
    (['--strategy=sync_sgd', '--replicas_to_aggregate=3'], 3),
    (['--strategy=sagn', '--communication_period=3'], 2),
    (['--strategy=async_sgd'], 1),
    (['--strategy=sync_sgd', '--lr_scale=8'], 8),
  ],
)
@pytest.mark.slow
def test_linear_scaling_is_by_the_batches_of_an_update(
  find_schedule, words, scale
):
  flags = '--lr_schedule=linear_scaling', '--batch_size=5'
  assert find_schedule(WORKER, *flags, *words)[0].scale == scale


@pytest.mark.slow
def test_linear_scaling_counts_gpus(find_schedule):
  member = dataclasses.replace(WORKER, num_gpus=2)
  flags = '--lr_schedule=linear_scaling', '--batch_size=5'
  schedule, _ = find_schedule(member, *flags, '--strategy=sync_sgd')
  assert schedule.scale == 4


@pytest.mark.parametrize('has_summaries', [False, True])
def test_what_differs_from_step_to_step_is_fetched(
  tf_session, set_flags, has_summaries
):
  set_flags()
  update = types.SimpleNamespace(
    train_op=tf.constant(7, tf.int64),
    staleness=tf.constant(2, tf.int64),
    bytes_pulled=40,
    bytes_pushed=20,
  )
  step = types.SimpleNamespace(
    update=update,
    loss=tf.constant(0.5),
    metrics={'accuracy': tf.constant(0.25)},
  )
  graph = types.SimpleNamespace(step=step, warmup=None)
  steps, constants = worker_graph.make_steps(None, graph, has_summaries, None)
  assert constants == {'bytes_pulled': 40, 'bytes_pushed': 20}
  context = types.SimpleNamespace(session=tf_session)
  fetches = steps.before_run(context).fetches
  values = tf_session.run(fetches)
  steps.after_run(context, types.SimpleNamespace(results=values))
  found = steps.last
  assert (found['global_step'], found['staleness']) == (7, 2)
  assert found.get('accuracy') == (0.25 if has_summaries else None)
