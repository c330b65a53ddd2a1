"""--ema_decay: the averages beside the center, under every rule."""

import itertools

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from distmnist.common import cli
from distmnist.exchange.peers import meetings
from distmnist.lifecycle import task as task_lib
from distmnist.logdir import checkpoints
from distmnist.training import averages, flag_checks, worker_graph
from distmnist.training.problems import problem as problem_lib
from distmnist.training.problems import problem_data
from distmnist.transport import weight_averages
from tests.strategies.battery_test import each_strategy
from tests.support import in_process, problems
from tests.training.worker_loop_test import train  # noqa: F401  A fixture.

DECAY = 0.25  # From the second update on; (1 + t) / (10 + t) before.
NUM_STEPS = 6
FLAGS = (
  *problems.FEW_IMAGES,
  '--model=mlp',
  '--batch_size=4',
  '--learning_rate=0.1',
  '--communication_period=2',
  f'--ema_decay={DECAY}',
)


def build(member):
  """Builds a worker's graph by the flags; returns (graph, its strategy)."""
  splits = problem_data.load_training_splits(problem_lib.from_flags())
  choice = flag_checks.check(member, *(s.num_examples for s in splits))
  task = task_lib.Task(member, in_process.NoStop())
  return worker_graph.build(task, choice, splits[0], seed=3), choice.strategy


def move(values, center, step):
  """Returns what the averages are after an update: Polyak's, by num_updates."""
  decay = min(DECAY, (1 + step) / (10 + step))
  return [
    decay * a.astype(float) + (1 - decay) * x
    for a, x in zip(values, center, strict=True)
  ]


def feed(graph, number, index):
  first = 4 * (2 * number + index)
  row = np.arange(first, first + 4)
  return {graph.fed: [[row[0], *row]]}


def check_close(found, expected):
  for a, b in zip(found, expected, strict=True):
    np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7)


def check_steps(cluster, index):
  """Has a worker take some steps, and compares the averages after each.

  Returns:
    int, the global_step.
  """
  graph, strategy = build(cluster.worker(index))
  step = graph.step
  assert len(step.averages) == len(step.center)
  state = [step.global_step, step.center, step.averages]
  hooks = strategy.hooks(in_process.NoStop())
  with cluster.make_session(index, hooks) as session:
    last, first, expected = session.run(state)
    check_close(expected, first)
    for number in range(NUM_STEPS):
      session.run(step.update.train_op, feed(graph, number, index))
      now, center, found = session.run(state)
      assert now in (last, last + 1)
      if now > last:
        expected = move(expected, center, now)
      check_close(found, expected)
      last = now
    assert any(np.any(a != b) for a, b in zip(first, center, strict=True))
  return last


@pytest.mark.daily(but=['ring_allreduce', 'sagn'])
@pytest.mark.slow
@each_strategy
def test_each_update_of_the_center_moves_them_once(
  make_cluster, set_flags, name
):
  set_flags(*FLAGS, f'--strategy={name}')
  cluster = make_cluster(0 if name == 'ring_allreduce' else 2, 1)
  with tf.Graph().as_default():
    assert check_steps(cluster, 0) >= NUM_STEPS // 2


# A worker cannot begin a round that the other has not ended.
@pytest.mark.slow
def test_of_two_workers_in_lock_step_they_move_once_an_update(
  make_cluster, set_flags
):
  set_flags(*FLAGS, '--strategy=sync_sgd')
  cluster = make_cluster(1, 2)
  ends = cluster.run_workers(lambda index: check_steps(cluster, index))
  assert ends == [NUM_STEPS, NUM_STEPS]


@pytest.mark.slow
def test_under_ad_psgd_what_two_workers_do_alone_moves_none(
  make_cluster, set_flags, monkeypatch
):
  set_flags(*FLAGS, '--strategy=ad_psgd', '--communication_period=1')
  monkeypatch.setattr(
    meetings,
    'choose',
    lambda i, number, n: meetings.CENTER if number % 2 else 1,
  )
  cluster, workers = make_cluster(1, 2), []
  for index in range(2):
    with tf.Graph().as_default():
      graph, strategy = build(cluster.worker(index))
      hooks = strategy.hooks(in_process.NoStop())
      workers.append((graph, cluster.make_session(index, hooks)))
  (graph, session), (_, other) = workers
  state = [graph.step.global_step, graph.step.center, graph.step.averages]
  found = []
  with other, session:
    found.append(session.run(state))
    for number in range(1, 6):
      session.run(graph.step.update.train_op, feed(graph, number, 0))
      found.append(session.run(state))
  for (_, _, before), (number, center, after) in itertools.pairwise(found):
    if number % 2:
      check_close(after, move(before, center, number))
      # At first the copy has what the center has.
      has_moved = any(map(np.any, map(np.subtract, after, before)))
      assert has_moved == (number > 1)
    else:
      check_close(after, before)
  assert [number for number, _, _ in found] == list(range(6))


def read(path):
  reader = tf.train.load_checkpoint(checkpoints.find_latest(path))
  names = reader.get_variable_to_shape_map()
  return {name: reader.get_tensor(name) for name in names}


@pytest.mark.slow
def test_they_are_saved_and_a_run_that_goes_on_moves_them_on(train, tmp_path):  # noqa: F811
  words = '--optimizer=momentum', '--ema_decay=0.5'
  train(*words, '--train_steps=7', f'--logdir={tmp_path}/whole')
  train(*words, '--train_steps=3', f'--logdir={tmp_path}/parts')
  train(*words, '--train_steps=7', f'--logdir={tmp_path}/parts')
  whole, parts = read(tmp_path / 'whole'), read(tmp_path / 'parts')
  kept = [name for name in whole if name.endswith(weight_averages.NAME)]
  assert len(kept) == 2
  for name in kept:
    np.testing.assert_allclose(parts[name], whole[name], rtol=1e-6)
    weight = name.removesuffix(f'/{weight_averages.NAME}')
    assert np.any(whole[name] != whole[weight])


@pytest.mark.slow
def test_a_checkpoint_without_them_is_named(train, tmp_path):  # noqa: F811
  train(f'--logdir={tmp_path}')
  assert not any(weight_averages.NAME in name for name in read(tmp_path))
  with pytest.raises(cli.RunError, match=f'has no .*{weight_averages.NAME}'):
    train('--train_steps=6', '--ema_decay=0.5', f'--logdir={tmp_path}')


def test_they_take_the_place_of_the_weights_where_a_model_is_judged(set_flags):
  set_flags('--ema_decay=0.5')
  with tf.Graph().as_default():
    weight = tf.get_variable('w', [2])
    count = tf.get_variable('n', [], trainable=False)
    average = f'w/{weight_averages.NAME}'
    assert averages.name_all([weight, count]) == {average: weight, 'n': count}
    values = {'w': 1, average: 2, 'n': 3}
    assert averages.put_in_place(values) == {'w': 2, average: 2, 'n': 3}
    set_flags('--ema_decay=0')
    assert averages.name_all([weight]) == {'w': weight}
    assert averages.put_in_place(values) == values
