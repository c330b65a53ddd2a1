"""chief: its flags, its hooks at a run's begin and end, and its report."""

import json
import os
import re
import shutil
import time
import types

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from distmnist.cluster import cluster as cluster_lib
from distmnist.common import console, registry
from distmnist.common.names import MODELS
from distmnist.logdir import history
from distmnist.logdir import report as report_lib
from distmnist.strategies import async_sgd
from distmnist.tables import table_saver
from distmnist.training import chief as chief_lib
from distmnist.training.hooks import end_hook, save_hook
from distmnist.training.problems import problem as problem_lib
from distmnist.training.problems import problem_data
from distmnist.watching import own_metrics
from tests.support import in_process, problems
from tests.support.runner import SMALL, read_report

FEW = (
  '--dataset=synthetic',
  '--synthetic_train_images=20',
  '--synthetic_test_images=8',
  '--validation_images=5',
)


HOSTS = {'ps_hosts': ('p:1',), 'worker_hosts': ('a:1', 'b:1', 'c:1', 'd:1')}


class Others:
  """Stands for shutdown.Others: workers that are at their end."""

  def __init__(self, stats):
    self.stats, self.waits, self.num_stops = stats, [], 0

  def wait_at_end(self, timeout_secs, pause, get_on):
    self.waits.append(timeout_secs)
    return self.stats

  def stop_all(self):
    self.num_stops += 1

  def is_save_wanted(self):
    return False


class Progress:
  final_loss = 0.5


class Run:
  """A chief whose net always answers 3, at global step 40."""

  def __init__(self, session, logdir=None, others=()):
    self.logdir, self.session = logdir, session
    self.lines, self.others = [], Others(list(others))
    console.print_logs(self.lines.append)
    self.rule = async_sgd.make(cluster_lib.Cluster())
    self.stop = in_process.NoStop()
    global_step = tf.train.get_or_create_global_step()
    build_model = registry.load(MODELS, 'softmax').make(10)
    build_model(tf.zeros([1, 28, 28, 1]), is_training=True)
    weights, biases = center = tf.trainable_variables()
    path = logdir and str(logdir)
    folder = types.SimpleNamespace(
      path=path,
      images='some images',
      summary_dir=None,
      owner=path and types.SimpleNamespace(folder=path, check=lambda: None),
    )
    problem = problems.of_images(build_model)
    _, validation = problem_data.load_training_splits(problem_lib.from_flags())
    self.validation = validation
    task = types.SimpleNamespace(
      cluster=cluster_lib.Cluster(**HOSTS),
      stop=self.stop,
      server_config=None,
      stalls=in_process.make_stalls(),
      metrics=own_metrics.OwnMetrics(),
      history=history.History(),
    )
    problem.load = problem_lib.from_flags().load
    choice = types.SimpleNamespace(
      problem=problem, strategy=self.rule, plan=None
    )
    judges = {'test': load_test_split(), 'validation': validation}
    steps = types.SimpleNamespace(last={'global_step': 40})
    kept = types.SimpleNamespace(
      saver=table_saver.TableSaver('/cpu:0'), is_whole=lambda session: True
    )
    saves = save_hook.make(task, folder, steps, kept, self.others)
    self.chief = chief_lib.Chief(
      *(task, choice, center, judges, folder, steps, self.others, saves)
    )
    self.chief.begin()
    self.end_hook = end_hook.EndHook(
      *(task, self.others, self.rule, lambda: 40, saves, self.chief.read_last)
    )
    session.run(tf.global_variables_initializer())
    weights.load(np.zeros(weights.shape), session)
    biases.load(np.eye(10)[3], session)
    global_step.load(40, session)

  def end(self):
    self.end_hook.end(self.session)

  def report(self, **stats):
    self.chief.report(
      report_lib.WorkerStats(0, life='a', train_secs=2.0, **stats),
      self.end_hook.workers,
      Progress(),
      time.monotonic(),
    )


def load_test_split():
  return problem_data.load_split(problem_lib.from_flags(), 'test')


def find_share(split):
  """Returns the accuracy on it of a net that always answers 3."""
  return np.mean(split.y == 3)


@pytest.mark.slow
def test_the_report_is_of_the_center_at_the_end(
  tf_session, set_flags, tmp_path
):
  set_flags(*FEW, '--end_timeout_secs=12')
  other = report_lib.WorkerStats(2, life='b', local_steps=30, examples=300)
  run = Run(tf_session, tmp_path, [other])
  run.end()
  assert run.others.waits == [12]
  for variable in tf.trainable_variables():  # What comes later is not in it.
    variable.load(np.zeros(variable.shape), tf_session)
  run.report(local_steps=10, examples=100, timed_examples_of_all=400)
  found = json.loads((tmp_path / 'report.json').read_text())
  test_split = load_test_split()
  assert found['test_accuracy'] == pytest.approx(find_share(test_split))
  assert found['validation_accuracy'] == pytest.approx(
    find_share(run.validation)
  )
  assert {find_share(test_split), find_share(run.validation)} != {0}
  expected = {
    'best_step': None,
    'test_examples': 8,
    'global_step': 40,
    'local_steps': 40,
    'examples': 400,
    'pushes_per_update': 1,
    'tables': {},
    'final_loss': 0.5,
    'examples_per_sec': 200,
    'train_secs': 2,
    'workers_not_heard_of': [1, 3],
  }
  assert {name: found[name] for name in expected} == expected
  assert [row['worker'] for row in found['workers']] == [0, 2]
  assert found['flags']['synthetic_train_images'] == 20
  assert 0 <= found['total_secs'] < 60
  assert run.lines[-3] == f'report              {tmp_path}/report.json'


@pytest.mark.slow
def test_the_report_is_of_the_center_if_the_best_has_been_removed(
  tf_session, set_flags, tmp_path
):
  set_flags(*FEW, '--validation_steps=10', '--early_stopping_patience=2')
  run = Run(tf_session, tmp_path)
  values = {'w': np.zeros(3), 'global_step': np.int64(20)}
  run.chief._validation.best.note(values, 20, {'accuracy': 0.8})
  shutil.rmtree(tmp_path / 'best')
  run.end()
  run.report(local_steps=10, examples=100)
  found = json.loads((tmp_path / 'report.json').read_text())
  assert (found['best_step'], found['global_step']) == (None, 40)
  share = find_share(load_test_split())
  assert found['test_accuracy'] == pytest.approx(share)


@pytest.mark.slow
@pytest.mark.parametrize(
  'words, best_step',
  [
    (['--validation_steps=10'], None),
    (['--validation_steps=10', '--best=+accuracy'], 20),
    (['--validation_steps=10', '--early_stopping_patience=2'], 20),
    (['--best=+accuracy'], None),
  ],
)
def test_the_best_is_reported_if_it_is_asked_for(
  tf_session, set_flags, tmp_path, monkeypatch, words, best_step
):
  set_flags(*FEW, *words)
  run = Run(tf_session, tmp_path)
  if run.chief._validation:
    values = {'w': np.zeros(3), 'global_step': np.int64(20)}
    metrics = {'accuracy': 0.8, 'loss': 0.5}
    run.chief._validation.best.note(values, 20, metrics)
  evaluated = []

  def make_evaluate(task, choice, judges, path):
    evaluated.append(path)
    return lambda splits: {name: {'accuracy': 0.7} for name in splits}

  monkeypatch.setattr(chief_lib, '_make_evaluate', make_evaluate)
  run.end()
  run.report(local_steps=10, examples=100)
  found = json.loads((tmp_path / 'report.json').read_text())
  assert (found['best_step'], found['global_step']) == (best_step, 40)
  assert len(evaluated) == (best_step is not None)
  if best_step:
    assert found['validation_metrics']['accuracy'] == 0.8
    assert found['test_accuracy'] == 0.7


@pytest.mark.slow
def test_when_its_time_is_over_all_are_told_once(
  tf_session, set_flags, monkeypatch
):
  set_flags(*FEW, '--train_secs=3')
  run = Run(tf_session)
  now, stops = 100.0, []
  monkeypatch.setattr(
    chief_lib, 'time', types.SimpleNamespace(monotonic=lambda: now)
  )
  context = types.SimpleNamespace(
    session=tf_session,
    stop_requested=False,
    request_stop=lambda: stops.append(now),
  )
  run.chief.after_create_session(tf_session, None)
  for secs in 20, 2.5, 1, 1:  # The first step takes as long as it likes.
    now += secs
    run.chief.after_run(context, None)
  assert (stops, run.others.num_stops) == ([123.5], 1)


@pytest.mark.slow
def test_after_a_signal_nobody_is_waited_for(tf_session, set_flags):
  set_flags(*FEW)
  run = Run(tf_session)
  run.stop.is_requested = True
  run.end()
  assert run.others.waits == []


@pytest.mark.daily
@pytest.mark.slow
def test_the_validation_accuracy_at_the_end_is_that_of_evaluate(
  tasks, tmp_path
):
  logdir = tmp_path / 'run'
  flags = [*SMALL, '--train_steps=60', f'--logdir={logdir}']
  task = tasks.run(tmp_path / '1', *flags)
  found = read_report(logdir)
  accuracy = found['validation_accuracy']
  assert found['best_step'] is None
  assert f'validation accuracy {accuracy:.4f}' in task.output
  evaluated = tasks.run(
    tmp_path / '2',
    *(f'--logdir={logdir}', '--split=validation'),
    module='distmnist.evaluate',
  )
  assert f'validation accuracy {accuracy:.4f}' in evaluated.output
  flags = [*flags, '--validation_images=0', '--resume=never']
  assert tasks.run(tmp_path / '3', *flags).code == 0
  found = read_report(logdir)
  assert found['validation_accuracy'] is None


@pytest.mark.slow
def test_early_stopping_keeps_and_reports_the_best(tasks, tmp_path):
  logdir = tmp_path / 'run'
  task = tasks.run(
    tmp_path / 'log',
    *SMALL,
    '--epochs=400',
    '--learning_rate=0.05',
    '--validation_steps=25',
    '--early_stopping_patience=4',
    f'--logdir={logdir}',
  )
  assert task.code == 0, task.output
  report = read_report(logdir)
  found = [
    (int(step), accuracy)
    for step, accuracy in re.findall(
      r'^step (\d+): validation accuracy (\S+)', task.output, re.M
    )
  ]
  best_step = report['best_step']
  best = dict(found)[best_step]
  assert best == max(accuracy for _, accuracy in found)
  assert report['global_step'] == best_step + 4 * 25
  assert f'early stopping at step {report["global_step"]}' in task.output
  assert f'best step           {best_step}' in task.output
  evaluated = tasks.run(
    tmp_path / 'evaluate',
    f'--logdir={logdir}',
    '--checkpoint=best',
    module='distmnist.evaluate',
  )
  assert (
    f'step {best_step}  test accuracy {report["test_accuracy"]:.4f}'
    in evaluated.output
  )


@pytest.mark.daily
@pytest.mark.slow
def test_a_time_is_the_end_of_a_training_that_goes_on_if_asked(tasks, tmp_path):
  flags = *SMALL, f'--logdir={tmp_path / "run"}', '--train_secs=0.2'
  steps = []
  for name in '1.log', '2.log':
    task = tasks.run(tmp_path / name, *flags)
    assert task.code == 0, task.output
    steps.append(read_report(tmp_path / 'run')['global_step'])
  assert 1 < steps[0] < steps[1]


@pytest.mark.daily
@pytest.mark.slow
def test_a_resumed_run_whose_first_save_fails_keeps_what_it_began_with(
  tasks, tmp_path
):
  logdir = tmp_path / 'run'
  flags = *SMALL, f'--logdir={logdir}'
  assert tasks.run(tmp_path / '1.log', *flags, '--train_steps=5').code == 0
  before = {
    name: (logdir / name).read_bytes()
    for name in os.listdir(logdir)
    if name.startswith(('model.ckpt', 'report', 'train.flags'))
  }
  # The same run again has already ended, and writes nothing.
  task = tasks.run(tmp_path / '2.log', *flags, '--train_steps=5')
  assert task.code == 0
  assert 'already finished at step 5: there was nothing to do' in task.output
  # A folder in place of the next checkpoint makes its save fail.
  (logdir / 'model.ckpt-9.data-00000-of-00001' / 'x').mkdir(parents=True)
  task = tasks.run(tmp_path / '3.log', *flags, '--train_steps=9')
  assert task.code == 1
  assert 'cannot write checkpoint' in task.output
  del before['report.json'], before['train.flags']
  assert {name: (logdir / name).read_bytes() for name in before} == before


@pytest.mark.parametrize(
  'words, period',
  [
    ([], 0),
    (['--validation_steps=7', '--early_stopping_patience=2'], 7),
    (['--validation_steps=-1'], 33),
    (['--early_stopping_patience=2'], 33),
  ],
)
def test_an_epoch_is_validated_once(set_flags, words, period):
  set_flags(*words)
  plan = types.SimpleNamespace(images_per_epoch=1000, images_per_update=30)
  assert chief_lib.find_period(plan) == period
