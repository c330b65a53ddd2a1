"""Each file of configs/: what it says, that it starts, that it learns."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from distmnist.common import command_line
from distmnist.nn import optimizers
from tests.support import training
from tests.support.paths import REPO

FOLDER = REPO / 'configs'
CONFIGS = sorted(FOLDER.rglob('*.flags'))
each_config = pytest.mark.parametrize(
  'path', CONFIGS, ids=lambda path: str(path.relative_to(FOLDER))
)


@each_config
def test_a_config_begins_with_what_it_is_and_is_understood(set_flags, path):
  assert path.read_text().startswith('# ')
  words = command_line.expand([f'--flagfile={path}'])
  if command_line.find_value(words, 'problem') is None:
    set_flags(*words)


@pytest.mark.slow
@pytest.mark.parametrize('path', sorted(FOLDER.glob('imagenet_*.flags')))
def test_a_config_has_the_flags_of_its_problem(tasks, tmp_path, path):
  task = tasks.run(tmp_path / 'log', f'--flagfile={path}', '--help')
  assert task.code == 0, task.output


def read_recipe(path):
  """Returns the flags of a config that say how it learns, not what.

  Args:
    path: str or pathlib.Path.
  """
  words = command_line.expand([f'--flagfile={path}'])
  of_what = (
    *('problem', 'net', 'side', 'smoothing', 'read_threads'),
    *('dataset', 'synthetic_train_images', 'synthetic_test_images'),
    *('validation_images', 'validation_steps', 'early_stopping_patience'),
    'seed',
  )
  return [w for w in words if w[2:].partition('=')[0] not in of_what]


# How the large nets are replaced: by one hidden layer.
SMALL_NETS = {'cnn': 'mlp', None: 'mlp'}
# (ps, workers) for what does not run with one of each.
CLUSTERS = {
  'dnn_vertical': (2, 1),
  'ring_allreduce': (0, 2),
  'sync_sgd_rates': (1, 2),
}


@pytest.mark.daily(but=['quickstart.flags'])
@pytest.mark.slow
@each_config
def test_a_small_net_learns_with_a_recipe(set_flags, make_cluster, path):
  """Drawn digits of ten classes: the loss of a guess is log 10, 2.3."""
  recipe = read_recipe(path)
  net = command_line.find_value(recipe, 'model')
  set_flags(
    *('--initializer=glorot', *recipe, f'--model={SMALL_NETS.get(net, net)}'),
    *('--dataset=synthetic', '--synthetic_train_images=3000'),
    *('--synthetic_test_images=10', '--validation_images=0', '--epochs=4'),
  )
  cluster = make_cluster(*CLUSTERS.get(path.stem, (1, 1)))
  _, _, costs = cluster.run_workers(
    lambda i: training.train(cluster.worker(i), cluster.servers[i])
  )[0]
  last = np.mean(costs[-len(costs) // 10 :])
  if path.stem == 'schlag':
    # Its weights begin far off, and its rate is so small that it takes the 20
    # passes over 55,000 images to get to a loss of 2.
    assert last < 0.95 * costs[0]
  else:
    assert last < 2.0


@pytest.fixture
def build_optimizer(set_flags):
  """Returns build(name of a config) -> (optimizer, rate, epoch).

  The rate is a tensor at the placeholder `epoch`.
  """

  def build(name):
    set_flags(*read_recipe(FOLDER / name), '--model=mlp')
    epoch = tf.placeholder(tf.int64, [])
    # As if an update were an epoch.
    make, rate = optimizers.from_flags(epoch)
    return make(), rate, epoch

  return build


@pytest.mark.parametrize(
  'name, rates',
  [
    ('imagenet_resnet50.flags', {0: 0.1, 29: 0.1, 30: 0.01, 60: 0.001}),
    ('imagenet_inception_v3.flags', {0: 0.045, 2: 0.0423, 4: 0.039762}),
  ],
)
def test_the_rates_are_those_of_the_paper(
  tf_session, build_optimizer, name, rates
):
  _, rate, epoch = build_optimizer(name)
  found = {at: tf_session.run(rate, {epoch: at}) for at in rates}
  assert found == pytest.approx(rates, rel=1e-5)


def take_steps(session, build_optimizer, name, gradients):
  """Returns the weight, 1 at first, after steps with these gradients."""
  optimizer, _, epoch = build_optimizer(name)
  w = tf.get_variable('w', [1, 1], initializer=tf.ones_initializer())
  given = tf.placeholder(tf.float32, [1, 1])
  train_op = optimizer.apply_gradients([(given, w)])
  session.run(tf.global_variables_initializer())
  for gradient in gradients:
    session.run(train_op, {given: [[gradient]], epoch: 0})
  return session.run(w).item()


@pytest.mark.slow
def test_resnet_decays_as_the_penalty_of_its_paper(tf_session, build_optimizer):
  """He et al. 2016: a penalty of 1e-4 |w|^2 / 2, and a momentum of 0.9."""
  found = take_steps(
    tf_session, build_optimizer, 'imagenet_resnet50.flags', [0] * 300
  )
  w, momentum = 1.0, 0.0
  for _ in range(300):
    momentum = 0.9 * momentum + 1e-4 * w
    w -= 0.1 * momentum
  # The momentum takes some steps to fill.
  assert 1 - found == pytest.approx(1 - w, rel=0.04)


def test_the_steps_of_inception_are_those_of_its_paper(
  tf_session, build_optimizer
):
  """Szegedy et al. 2016: RMSProp with decay 0.9, epsilon 1.

  The mean square begins at 1, and the momentum is 0.9, as in their program.
  """
  gradients = [0.5, -0.25, 2.0]
  found = take_steps(
    tf_session, build_optimizer, 'imagenet_inception_v3.flags', gradients
  )
  w, square, momentum = 1.0, 1.0, 0.0
  for gradient in gradients:
    square = 0.9 * square + 0.1 * gradient**2
    momentum = 0.9 * momentum + 0.045 * gradient / np.sqrt(square + 1)
    w -= momentum
  assert found == pytest.approx(w, rel=1e-5)
