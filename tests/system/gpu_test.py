"""What only a machine with a GPU can show; the other tests use one too."""

import collections
import glob
import json
import os
import pathlib
import subprocess
import sys

import pytest

from tests.support import programs
from tests.support.paths import REPO
from tests.support.runner import read_report, wait_for_line

_FIND = (
  'import tensorflow.compat.v1 as tf\n'
  'print(len(tf.config.list_physical_devices("GPU")))'
)
CNN = (
  '--dataset=synthetic',
  '--synthetic_train_images=5000',
  '--validation_images=500',
  '--model=cnn',
  '--optimizer=adam',
  '--learning_rate=0.001',
  '--train_steps=120',
)


@pytest.fixture(scope='module', autouse=True)
def num_gpus():
  """How many TensorFlow sees, found by another process."""
  if not glob.glob('/dev/nvidia[0-9]*'):
    pytest.skip('there is no GPU here')
  found = subprocess.run(
    [sys.executable, '-c', _FIND], cwd=REPO, capture_output=True, check=True
  )
  if not int(found.stdout):
    pytest.skip('TensorFlow sees no GPU here')
  return int(found.stdout)


pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def has_gpu(pid):
  """Whether a process has a GPU open."""
  opened = pathlib.Path(f'/proc/{pid}/fd').iterdir()
  return any(os.readlink(fd).startswith('/dev/nvidia') for fd in opened)


def read_devices(logdir, task):
  """Returns {op: set of devices} of a step that was traced."""
  trace = json.loads((logdir / task / 'trace_20.json').read_text())
  devices = collections.defaultdict(set)
  for event in trace['traceEvents']:
    if device := event.get('args', {}).get('device'):
      devices[event['name']].add(device)
  return devices


def test_a_model_is_computed_on_the_gpu_and_variables_stay_on_the_ps(
  make_real_cluster, tasks, tmp_path
):
  cluster, logdir = make_real_cluster(1, 2), tmp_path / 'run'
  ps, workers = cluster.start_all(
    *CNN, f'--logdir={logdir}', '--trace_steps=20'
  )
  wait_for_line(workers[0], 'step ', timeout_secs=500)
  wait_for_line(workers[1], 'on 1 GPU')
  assert [has_gpu(tasks.pids[task.name]) for task in (*ps, *workers)] == [
    *(False, True, True)
  ]
  assert tasks.wait(*ps, *workers, timeout_secs=500) == [0, 0, 0]
  # Both share the first GPU, as no launcher has dealt them out.
  assert all('on 1 GPU' in worker.output for worker in workers)
  assert read_report(logdir)['test_accuracy'] > 0.9
  for name in 'worker_0', 'worker_1':
    devices = read_devices(logdir, name)
    assert devices['Conv2DBackpropFilter'] == {'GPU:0'}
    assert devices['ResourceApplyAdam'] == {'CPU:0'}


def test_a_gpu_computes_what_a_cpu_does(tasks, tmp_path):
  costs = []
  for number in 1, 0:
    logdir = tmp_path / f'{number}_gpus'
    run = tasks.run(
      tmp_path / f'{number}.log',
      *(*CNN, '--optimizer=sgd', '--seed=7', '--train_steps=20'),
      *(f'--num_gpus={number}', f'--logdir={logdir}'),
    )
    assert run.code == 0, run.output
    costs.append(read_report(logdir)['final_loss'])
  assert costs[0] == pytest.approx(costs[1], rel=2e-3)


def test_more_gpus_than_there_are_are_refused(tasks, tmp_path, num_gpus):
  run = tasks.run(tmp_path / 'log', *CNN, f'--num_gpus={num_gpus + 1}')
  assert run.code == 2
  assert f'but TensorFlow sees {num_gpus} here' in run.last_line


def test_launch_deals_the_gpus_out_to_workers(tmp_path):
  logdir = tmp_path / 'run'
  programs.run(
    *('distmnist.launch', '--num_ps=1', '--num_workers=2', '--'),
    *(*CNN, f'--logdir={logdir}'),
  )
  assert read_report(logdir)['test_accuracy'] > 0.9
  logs = logdir / 'logs'
  assert 'on 1 GPU' in (logs / 'worker_1.log').read_text()
