"""A problem that computes with the global step: wherever its graph is built."""

import re

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from distmnist.serving import saved_model
from distmnist.training import divergence
from distmnist.training.problems import problem as problem_lib
from distmnist.training.problems import problem_checks, problem_data
from tests.support import problems, programs
from tests.support.runner import read_report

# What is lost is a seventh at first, and the model grows with the steps.
NET = """
import numpy as np
import tensorflow.compat.v1 as tf
from absl import flags
from distmnist.nn import layers

_SPARSE = flags.DEFINE_bool('sparse', False, 'Whether a table is added.')

def load(split):
  x = np.random.default_rng(len(split)).integers(9, size=[800, 2])
  return x, x.sum(1)

def take_step():
  return tf.cast(tf.train.get_global_step(), tf.float32)

def preprocess(x, y, is_training):
  if y is not None:  # An export has none.
    y = tf.cast(y, tf.float32) * tf.minimum(1.0, (take_step() + 5) / 9)
  return x, y

def build(x, is_training):
  weights = tf.get_variable('w', [2, 1], initializer=tf.ones_initializer())
  outputs = (tf.cast(x, tf.float32) @ weights)[:, 0] * (1 + take_step() / 100)
  if _SPARSE.value:
    outputs += tf.reduce_sum(layers.embedding(x, 9, 1, 'rows'), [1, 2])
  return outputs

def loss(y, outputs):
  step = tf.cast(tf.train.get_or_create_global_step(), tf.float32)
  return tf.minimum(1.0, (step + 1) / 7) * (y - outputs) ** 2
"""


@pytest.fixture
def net(tmp_path):
  return problems.write(tmp_path / 'net.py', NET)


@pytest.mark.slow
def test_each_graph_of_a_problem_has_the_global_step(net, set_flags, tmp_path):
  problem = problems.load(net, set_flags)
  train, _ = problem_data.load_training_splits(problem)
  problem_checks.check_graph(problem, train, batch_size=4)
  with problem_lib.open_graph():
    problem.build(tf.zeros([1, 2]), is_training=False)
    variables = tf.global_variables()
    assert [v.op.name for v in variables] == ['global_step', 'w']
    with tf.Session() as session:
      session.run(tf.global_variables_initializer())
      path = tf.train.Saver().save(session, str(tmp_path / 'model.ckpt'), 5)
  assert divergence.CheckpointCheck(problem, train).find(path) is None


@pytest.mark.daily
@pytest.mark.slow
@pytest.mark.parametrize(
  'cluster, words',
  [
    ((1, 2), ['--strategy=easgd', '--validation_steps=1']),
    ((2, 2), ['--sparse', '--evaluator']),
    ((0, 2), ['--strategy=ring_allreduce']),
  ],
)
def test_it_is_trained_judged_and_exported(net, tmp_path, cluster, words):
  num_ps, num_workers = cluster
  with_evaluator = [word for word in words if word == '--evaluator']
  logdir, exported = tmp_path / 'run', tmp_path / 'model'
  programs.run(
    *('distmnist.launch', f'--num_ps={num_ps}', *with_evaluator),
    *(f'--num_workers={num_workers}', '--', f'--problem={net}'),
    *('--learning_rate=0.001', '--epochs=4', f'--logdir={logdir}'),
    *(word for word in words if word not in with_evaluator),
  )
  report = read_report(logdir)
  step, found = report['global_step'], report['test_metrics']['loss']
  line, _ = programs.run_forked('evaluate', f'--logdir={logdir}')
  assert re.search(rf'step {step}  test loss {found:.4f}', line)
  if with_evaluator:
    log = (logdir / 'logs' / 'evaluator_0.log').read_text()
    assert f'step {step}  test loss {found:.4f}' in log
  programs.run_forked(
    'export', f'--logdir={logdir}', f'--export_dir={exported}'
  )
  model = saved_model.Model(str(exported))
  x = np.array([[1, 0], [0, 0]])
  [outputs] = model.run({'x': x}).values()
  assert outputs[0] != 0 and outputs.shape == (2,)


RATE = """
def learning_rate(step, epoch):
  return 0.001 / (1 + tf.cast(step, tf.float32))
"""


@pytest.mark.slow
def test_each_step_of_a_long_run_has_its_own(tmp_path):
  path = problems.write(tmp_path / 'net.py', NET + RATE)
  found = []
  for steps_per_run in 1, 10:
    logdir = tmp_path / f'run{steps_per_run}'
    programs.run_forked(
      *('train', f'--problem={path}', '--train_steps=40', '--batch_size=20'),
      *(f'--steps_per_run={steps_per_run}', f'--logdir={logdir}'),
    )
    report = read_report(logdir)
    found.append((report['final_loss'], report['test_metrics']['loss']))
  assert found[0] == found[1]
