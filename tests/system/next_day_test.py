"""A run that begins with the weights of another: how far it goes, what it has.

--epochs are passes of this run, also when it is started again or its chief is
killed; --train_steps is the global step at which it ends.
"""

import signal

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from distmnist.logdir import checkpoints
from distmnist.watching import metrics_file
from tests.support import programs
from tests.support.runner import SMALL, read_report, wait_for_step

BOTH = *SMALL, '--batch_size=50'  # 50 steps in an epoch.


@pytest.fixture
def first(tasks, tmp_path):
  """A run of 50 steps: its folder."""
  folder = tmp_path / 'first'
  task = tasks.run(tmp_path / 'log', *BOTH, '--epochs=1', f'--logdir={folder}')
  assert task.code == 0, task.output
  return folder


@pytest.mark.daily
@pytest.mark.slow
def test_epochs_are_those_of_the_new_run(first, tasks, tmp_path):
  logdir = tmp_path / 'second'
  flags = [*BOTH, '--epochs=2', f'--logdir={logdir}']

  def run(*more):
    task = tasks.run(tmp_path / f'log{tasks.num_started}', *flags, *more)
    assert task.code == 0, task.output
    return task.output

  said = run(f'--resume={first}')
  assert f'a new run from step 50 of {first}/model.ckpt-50: --epochs=2' in said
  assert 'step 150/150  epoch 2.00' in said and 'is now in' not in said
  report = read_report(logdir)
  assert (report['global_step'], report['examples']) == (150, 5000)
  # The next start in that folder makes what is left.
  assert 'already finished at step 150' in run()
  assert 'step 200/200  epoch 3.00' in run('--epochs=3')


@pytest.mark.slow
def test_a_start_with_nothing_to_do_says_so(first, tasks, tmp_path):
  logdir = tmp_path / 'second'
  task = tasks.run(
    *(tmp_path / 'log2', *BOTH, '--train_steps=20', f'--resume={first}'),
    f'--logdir={logdir}',
  )
  assert task.code == 0, task.output
  assert 'no step is made: the training begins at step 50' in task.output
  # Its flags are there for others all the same.
  line, _ = programs.run_forked('evaluate', f'--logdir={logdir}')
  assert line.startswith('step 50  test accuracy')


@pytest.mark.daily
@pytest.mark.slow
def test_a_chief_that_is_killed_knows_where_its_run_ends(
  first, make_real_cluster, tasks, tmp_path
):
  logdir, cluster = tmp_path / 'second', make_real_cluster(1, 2)
  flags = [
    *(
      *BOTH,
      '--epochs=40',
      '--log_secs=0',
      '--save_steps=100',
      f'--resume={first}',
    ),
    *('--strategy=sync_sgd', f'--logdir={logdir}'),
  ]
  [ps], [chief, worker] = cluster.start_all(*flags)
  wait_for_step(chief, 60)
  tasks.signal(chief, signal.SIGKILL)
  tasks.wait(chief)
  again = cluster.start('worker', 0, *flags, '--resume=auto')
  assert tasks.wait(ps, worker, again) == [0, 0, 0], again.output
  # 40 epochs of 2,500 images in updates of 100.
  assert read_report(logdir)['global_step'] == 50 + 1000
  path = checkpoints.find_latest(str(logdir))
  assert np.asarray(tf.train.load_variable(path, 'stream'))[2, 2] == 50
  assert not list(logdir.glob('earlier_*'))


@pytest.mark.daily
@pytest.mark.slow
def test_a_report_sums_what_the_last_lines_of_killed_lives_say(tasks, tmp_path):
  logdir = tmp_path / 'run'
  flags = [*BOTH, '--train_steps=9000', '--log_secs=1', f'--logdir={logdir}']
  task = tasks.start(tmp_path / 'killed', *flags)
  wait_for_step(task, 300)
  tasks.signal(task, signal.SIGKILL)
  tasks.wait(task)
  metrics = [
    x for x in metrics_file.iterate(str(logdir)) if x['kind'] == 'sample'
  ]
  known = metrics[-1]['local_steps']
  again = tasks.run(tmp_path / 'again', *flags)
  assert again.code == 0, again.output
  report = read_report(logdir)
  killed, last = report['workers'][0]['lives']
  assert killed['local_steps'] == known > 0
  assert report['local_steps'] == known + last['local_steps']
  assert f'at least {report["local_steps"]} local steps' in again.output
  assert report['steps_lost'] == killed['last_step'] - last['first_step']
