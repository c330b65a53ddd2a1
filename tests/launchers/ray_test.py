"""Each task an actor of Ray; the slow tests have a real one of two nodes.

The tasks are support/fake_train.py; one test runs the real one.
"""

import functools
import importlib.util
import os
import signal
import subprocess
import sys

import pytest

from distmnist.launching.ray import ray_cluster
from tests.support import background, ray_nodes
from tests.support.background import DEADLINE_SECS, assert_gone, last_line
from tests.support.paths import PYTHONPATH
from tests.support.runner import SMALL, read_report

pytestmark = pytest.mark.usefixtures('heed_signals')


def slow(test):
  return pytest.mark.slow(pytest.mark.timeout(600)(test))


@pytest.fixture
def launch(launch_here):
  return functools.partial(launch_here, '--launcher=ray')


def test_a_dry_run_prints_the_tasks(launch):
  code, out, err = launch(
    '--ray_cpus=4',
    '--evaluator',
    '--dry_run',
    '--',
    '--logdir=/shared/run',
  )
  assert code == 0, err
  lines = out.splitlines()
  assert len(lines) == 4
  assert lines[2] == (
    'python -m distmnist.train --job_name=worker --task_index=1'
    ' --ps_hosts=node-0:2222 --worker_hosts=node-1:2222,node-2:2222'
    ' --intra_op_parallelism_threads=4 --inter_op_parallelism_threads=2'
    ' --logdir=/shared/run'
  )
  assert '--job_name=evaluator' in lines[3]


def test_no_ray_is_said_before_anything_starts(launch, monkeypatch, tmp_path):
  monkeypatch.setattr(
    ray_cluster.importlib.util, 'find_spec', lambda name: None
  )
  code, out, err = launch('--', f'--logdir={tmp_path}/run')
  assert (code, out) == (1, '')
  (line,) = err.splitlines()
  assert 'distmnist[ray]' in line
  assert not list(tmp_path.iterdir())


class Here(background.Here):
  """A folder to launch from, on two nodes of 2 and of 1 CPU."""

  def __init__(self, nodes, folder):
    folder.mkdir()
    self.nodes, self.folder = nodes, folder
    self.logs = folder / 'logs'
    self.env = {**os.environ, 'PYTHONPATH': PYTHONPATH}

  def command(self, *words, **flags):
    flags = {'module': 'fake_train', 'logs_dir': self.logs, **flags}
    return [
      *(sys.executable, '-m', 'distmnist.launch', '--launcher=ray'),
      f'--ray_address={self.nodes.address}',
      *(f'--{name}={value}' for name, value in flags.items() if value != ''),
      *words,
    ]


@pytest.fixture(scope='module')
def nodes(tmp_path_factory):
  if importlib.util.find_spec('ray') is None:
    pytest.skip('no ray: pip install .[ray]')
  log = tmp_path_factory.mktemp('ray') / 'log'
  # As on other machines: what a task needs comes from the launcher.
  env = {k: v for k, v in os.environ.items() if k != 'DISTMNIST_DATA_DIR'}
  with ray_nodes.Nodes(env, log) as nodes:
    yield nodes


@pytest.fixture
def here(nodes, tmp_path):
  return Here(nodes, tmp_path / "it's mine")


@slow
def test_the_tasks_find_each_other_and_have_what_they_need(here):
  here.env['DISTMNIST_DATA_DIR'] = '/the/data'
  done = here.run(
    '--',
    '--do=worker0:connect=ps0,env=DISTMNIST_DATA_DIR,touch=on;'
    'ps0:serve,wait=worker0.on;evaluator0:print=evaluates',
    '--folder=.',  # That of the launch.
    f'--logdir={here.folder}/run',
    num_workers=1,
    evaluator='true',
  )
  assert done.returncode == 0, done.stderr
  assert done.stdout == "reached ps0\nDISTMNIST_DATA_DIR='/the/data'\n"
  assert here.log('ps_0').startswith('the port was held\nserving on ')
  assert here.log('evaluator_0') == 'evaluates\n'


@slow
def test_the_first_failure_is_named_with_its_node(here):
  do = 'ps0:leave;worker0:leave;worker1:wait=worker0.ready,wait=ps0.ready,{}'
  done = here.do(do.format('exit=3'))
  assert done.returncode == 3, done.stderr
  assert 'worker 1 (its actor) failed first: exit code 3 on ' in last_line(
    done.stderr
  )
  for name in ('ps_0', 'worker_0'):
    assert here.log(name) == 'leaving on 15\n'


@slow
def test_a_killed_task_restarts_with_all_others(here):
  do = (
    'ps0@1:leave;worker0@1:leave;'
    'worker1@1:wait=worker0.ready,wait=ps0.ready,kill=9;'
    'all@2:env=DISTMNIST_ATTEMPT'
  )
  done = here.do(do, max_restarts=1)
  assert done.returncode == 0, done.stderr
  assert ': killed by SIGKILL on ' in done.stderr
  for name in ('ps_0', 'worker_0', 'worker_1'):
    assert here.log(name).endswith("DISTMNIST_ATTEMPT='2'\n")


@slow
def test_ctrl_c_has_the_tasks_save_and_leaves_no_process(here):
  with here.start('all:leave') as running:
    tasks = running.wait_for('worker0.ready', 'worker1.ready', 'ps0.ready')
    agents = [task.parent() for task in tasks]
    running.send(signal.SIGINT)
    assert running.process.wait(DEADLINE_SECS) == 130
    assert_gone([*tasks, *agents])
  assert last_line(running.stderr.read_text()) == (
    f'distmnist.launch: stopped by SIGINT, logs in {here.logs}'
  )
  background.assert_ps_left_last(here.folder)
  assert here.log('worker_0') == 'leaving on 15\n'


@slow
def test_a_launcher_that_is_killed_has_the_tasks_end_in_order(here):
  with here.start('all:child,leave') as running:
    tasks = running.wait_for('worker0.ready', 'worker1.ready', 'ps0.ready')
    children = [child for task in tasks for child in task.children()]
    assert len(children) == 3
    agents = [task.parent() for task in tasks]
    running.send(signal.SIGKILL)
    assert_gone([*tasks, *children, *agents])
  for task in ('worker0', 'worker1', 'ps0'):
    assert (here.folder / f'{task}.left').exists()


@slow
def test_too_little_room_is_one_line(here):
  done = here.do('all:print=x', ray_cpus=9, ray_wait_secs=1)
  assert done.returncode == 1
  assert last_line(done.stderr) == (
    'distmnist.launch: error: after 1 s Ray has not started ps 0, worker 0,'
    ' worker 1: 19 CPUs are needed, at most 9 on one node, and Ray has 3, of'
    ' which 3 are free (nodes: 2); ask for fewer tasks, or see --ray_cpus,'
    ' --ray_gpus and --ray_wait_secs'
  )


@slow
def test_the_trials_of_a_sweep_run_there(here):
  do = ['--do=worker0:report=0.5', f'--folder={here.folder}']
  words = here.command('learning_rate=0.1,0.2', '--', *do, logs_dir='')
  words[2] = 'distmnist.sweep'
  words[3:3] = ['--num_ps=0', '--num_workers=1', '--parallel=2']
  words[3:3] = [f'--sweep_dir={here.folder}/sweep']
  done = subprocess.run(words, env=here.env, capture_output=True, text=True)
  assert done.returncode == 0, done.stderr
  results = (here.folder / 'sweep' / 'results.csv').read_text()
  assert results.count(',done') == 2, results


@slow
def test_a_lost_node_costs_steps_and_not_the_run(here):
  logdir = here.folder / 'run'
  command = here.command(
    *('--', *SMALL, '--train_steps=6000', '--save_steps=100'),
    f'--logdir={logdir}',
    module='distmnist.train',
    max_restarts=2,
  )
  with background.Running(
    here.folder, command, cwd=here.folder, env=here.env
  ) as running:
    running.wait_until(
      lambda: list(logdir.glob('model.ckpt-*.index')), timeout_secs=300
    )
    here.nodes.tell('kill')
    # Two of the three tasks have room: all wait for a node, and get it.
    running.wait_for_words('with all other tasks')
    here.nodes.tell('add 1')
    assert running.process.wait(300) == 0, running.stderr.read_text()
  said = running.stderr.read_text()
  assert ': its node has died: restart 1 of 2 in 0.1 s' in said
  first, again = here.log('worker_0').split('--- restart 1 of 2 ---\n')
  assert 'restored' not in first
  assert f'restored {logdir}/model.ckpt-' in again
  assert read_report(logdir)['global_step'] >= 6000
  places = [line for line in said.splitlines() if 'Ray has placed' in line]
  assert len({*places}) == 2
