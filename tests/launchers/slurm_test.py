"""The launcher with a real Slurm of one node, where it is installed.

The tasks are support/fake_train.py; one test runs the real one.
"""

import functools
import os
import re
import signal
import subprocess
import sys
import time

import pytest

import distmnist
from distmnist.common import signals
from distmnist.launchers import slurm
from distmnist.watching import watched_run
from tests.support import background, programs, slurm_cluster
from tests.support.background import DEADLINE_SECS, last_line, wait_until
from tests.support.paths import PYTHONPATH
from tests.support.runner import SMALL, read_report

pytestmark = pytest.mark.usefixtures('heed_signals')


@pytest.fixture(scope='module')
def slurm_conf(tmp_path_factory):
  if reason := slurm_cluster.why_not():
    pytest.skip(reason)
  with slurm_cluster.start(tmp_path_factory.mktemp('slurm')) as config:
    yield config


@pytest.fixture
def here(tmp_path, slurm_conf):
  here = Here(tmp_path / "it's 100% mine", slurm_conf)
  yield here
  here.cancel_all()


class Here(background.Here):
  """A folder to launch from, and the jobs of Slurm."""

  def __init__(self, folder, slurm_conf=None, path=None):
    folder.mkdir(exist_ok=True)
    self.folder = folder
    self.logs = folder / 'logs'
    self.env = {**os.environ, 'PYTHONPATH': PYTHONPATH}
    self.env |= {'SLURM_CONF': str(slurm_conf)} if slurm_conf else {}
    self.env |= {'PATH': str(path)} if path else {}

  def command(self, *words, **flags):
    flags = {'module': 'fake_train', 'logs_dir': self.logs, **flags}
    return [
      *(sys.executable, '-m', 'distmnist.launch', '--launcher=slurm'),
      *(f'--{name}={value}' for name, value in flags.items() if value != ''),
      *words,
    ]

  def find_jobs(self):
    """Returns the states of the jobs that Slurm still has, list of str."""
    done = subprocess.run(
      ['squeue', '--noheader', '--format=%T'],
      env=self.env,
      capture_output=True,
      text=True,
      check=True,
    )
    return done.stdout.split()

  def wait_until_no_job_is_left(self):
    wait_until(lambda: not self.find_jobs(), self.find_jobs)

  def cancel_all(self):
    if self.find_jobs():
      subprocess.run(['scancel', '--name=distmnist'], env=self.env, check=True)
      self.wait_until_no_job_is_left()


# Who can reach the ports: addresses_test has the words.
EXPOSED = re.compile(r'^distmnist\.launch: anyone who reaches the .*\n', re.M)


def strip_number(text):
  """Returns `text` without the job's number and who can reach its ports."""
  return re.sub(r'\bjob \d+', 'job N', EXPOSED.sub('', text))


NODE = os.uname().nodename.partition('.')[0]


@pytest.mark.slow
def test_a_clean_run_ends_with_0_and_shows_the_chief_alone(here):
  done = here.do('all:count=2')
  assert done.returncode == 0, done.stderr
  assert done.stdout == 'worker0 line 0\nworker0 line 1\n'
  assert strip_number(done.stderr) == (
    'distmnist.launch: 1 ps and 2 workers as job N of Slurm, logs in'
    f' {here.logs}\n[slurm] job N: runs on {NODE}\n'
  )
  assert here.log('worker_1') == 'worker1 line 0\nworker1 line 1\n'
  assert here.log('ps_0') == 'ps0 line 0\nps0 line 1\n'
  here.wait_until_no_job_is_left()


@pytest.mark.slow
def test_flags_arrive_as_they_were_given(here):
  flags = ["--a=it's", '--b="$HOME" `id`', '--c=two\nlines', '--d=*', '--e=\\']
  flags += ['--f=@LOGS@', '--g=%j']
  done = here.run('--', '--do=worker0:facts', *flags, num_workers=1, num_ps=0)
  assert done.returncode == 0, done.stderr
  assert repr(flags)[1:-1] in done.stdout
  assert 'stdin /dev/null' in done.stdout


@pytest.mark.slow
def test_each_task_knows_the_port_of_its_job_and_what_setup_has_set(here):
  done = here.do(
    'all:env=DISTMNIST_FIRST_PORT,env=COLOUR,env=DISTMNIST_ATTEMPT',
    slurm_setup='export COLOUR="it is red"',
    slurm_options='--comment="a b" --export=ALL',
    slurm_nodes=1,
    slurm_time=5,
    slurm_partition='main',
    show_logs='all',
  )
  assert done.returncode == 0, done.stderr
  job = int(re.search(r'job (\d+)', done.stderr)[1])
  said = [
    f"DISTMNIST_FIRST_PORT='{10000 + job * 32}'",
    "COLOUR='it is red'",
    'DISTMNIST_ATTEMPT=None',
  ]
  assert sorted(done.stdout.splitlines()) == sorted(
    f'[{name}] {line}'
    for name in ('ps 0', 'worker 0', 'worker 1')
    for line in said
  )


@pytest.mark.slow
@pytest.mark.parametrize(
  ('flags', 'devices'),
  [
    (['--num_gpus=1'], ["''", "'5'", "'4'", "'5'"]),
    (['--num_gpus=2'], ["'4,5'"] * 4),
  ],
)
def test_the_gpus_of_a_node_are_shared_out_among_its_workers(
  here, flags, devices
):
  done = here.run(
    *('--', '--do=all:env=CUDA_VISIBLE_DEVICES', *flags),
    slurm_setup='export CUDA_VISIBLE_DEVICES=4,5',
    num_workers=3,
    show_logs='all',
  )
  lines = sorted(done.stdout.splitlines())
  assert [line.partition('=')[2] for line in lines] == devices


@pytest.mark.slow
def test_the_first_failure_gives_the_code_and_ends_the_others(here):
  with here.start(
    'worker0:leave;ps0:leave;'
    'worker1:count=1,wait=worker0.ready,wait=ps0.ready,exit=3'
  ) as running:
    assert running.process.wait(DEADLINE_SECS) == 3
  assert strip_number(running.stderr.read_text()).splitlines()[1:] == [
    f'[slurm] job N: runs on {NODE}',
    '[slurm] job N: the last lines of worker 1:',
    '[slurm]   | worker1 line 0',
    f'[slurm] job N: error: worker 1 ({NODE}) failed first: exit code 3; log:'
    f' {here.logs}/worker_1.log',
  ]
  for name in ('worker_0', 'ps_0'):
    assert here.log(name) == f'leaving on {signal.SIGTERM.value}\n'
  here.wait_until_no_job_is_left()


@pytest.mark.slow
def test_a_task_that_is_killed_is_started_again_with_all_others(here):
  done = here.do(
    'all:env=DISTMNIST_ATTEMPT;worker1@1:wait=worker0.ready,kill=9;'
    'worker0@1:leave;ps0@1:leave',
    max_restarts=2,
  )
  assert done.returncode == 0, done.stderr
  assert strip_number(done.stderr).splitlines()[2:] == [
    f'[slurm] job N: worker 1 ({NODE}) killed by SIGKILL: restart 1 of 2 in 0.1'
    ' s, with all other tasks'
  ]
  second = "--- restart 1 of 2 ---\nDISTMNIST_ATTEMPT='2'\n"
  assert here.log('worker_1') == f'DISTMNIST_ATTEMPT=None\n{second}'
  assert here.log('worker_0') == (
    f'DISTMNIST_ATTEMPT=None\nleaving on 15\n{second}'
  )


@pytest.mark.slow
def test_who_fails_too_often_is_named(here):
  done = here.do(
    'worker1:kill=11;ps0:leave;worker0:leave',
    max_restarts=1,
    slurm_setup="set -euo pipefail; IFS=$'\\n'",  # The user's, not ours.
  )
  assert done.returncode == 139
  assert strip_number(last_line(done.stderr)) == (
    f'[slurm] job N: error: worker 1 ({NODE}) failed after 1 restart: killed by'
    f' SIGSEGV; log: {here.logs}/worker_1.log'
  )


@pytest.mark.slow
def test_what_would_fail_again_is_not_tried_again(here):
  done = here.do('worker1:exit=2;ps0:leave', max_restarts=5)
  assert done.returncode == 2
  assert 'failed first: exit code 2;' in last_line(done.stderr)
  assert 'restart' not in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize('sent', [signal.SIGINT, signal.SIGHUP])
def test_a_signal_cancels_the_job_and_the_tasks_save(here, sent):
  with here.start('all:leave', max_restarts=3) as running:
    tasks = running.wait_for('worker0.ready', 'worker1.ready', 'ps0.ready')
    os.kill(running.process.pid, sent)
    assert running.process.wait(DEADLINE_SECS) == 128 + sent
    assert not any(task.is_running() for task in tasks)
  for name in ('worker_0', 'worker_1', 'ps_0'):
    assert here.log(name) == f'leaving on {signal.SIGTERM.value}\n'
  said = last_line(running.stderr.read_text())
  assert said == (
    f'distmnist.launch: stopped by {sent.name}, logs in {here.logs}'
  )
  here.wait_until_no_job_is_left()


@pytest.mark.slow
def test_a_second_signal_leaves_at_once_and_slurm_kills(here):
  with here.start('all:deaf,touch=deaf,forever', max_restarts=3) as running:
    tasks = running.wait_for('worker0.deaf', 'worker1.deaf', 'ps0.deaf')
    os.kill(running.process.pid, signal.SIGINT)
    running.wait_for_words('CANCELLED')
    time.sleep(signals.ONE_KEY_SECS)  # Sooner, it would be the same Ctrl-C.
    os.kill(running.process.pid, signal.SIGINT)
    assert running.process.wait(DEADLINE_SECS) == 130
  assert 'is left to Slurm, which kills it' in running.stderr.read_text()
  here.wait_until_no_job_is_left()
  assert not any(task.is_running() for task in tasks)


@pytest.mark.slow
def test_a_job_that_waits_for_its_turn_is_cancelled(here):
  with here.start('all:leave', slurm_options='--begin=now+1hour') as running:
    running.wait_for_words('as job')
    assert here.find_jobs() == ['PENDING']
    os.kill(running.process.pid, signal.SIGINT)
    assert running.process.wait(DEADLINE_SECS) == 130
  assert here.find_jobs() == []


@pytest.mark.slow
def test_a_job_that_another_one_cancels_is_an_error(here):
  with here.start('all:leave', max_restarts=3) as running:
    running.wait_for('worker0.ready', 'worker1.ready', 'ps0.ready')
    subprocess.run(
      ['scancel', '--name=distmnist'], env=here.env, check=True, timeout=200
    )
    assert running.process.wait(DEADLINE_SECS) == 143
  said = strip_number(running.stderr.read_text())
  assert '[slurm] job N: cancelled: the tasks were told to leave\n' in said
  assert last_line(said) == (
    'distmnist.launch: error: job N was cancelled, by scancel or by Slurm, exit'
    ' code 143; log:'
    f' {here.logs}/slurm.log'
  )
  assert here.log('worker_1') == f'leaving on {signal.SIGTERM.value}\n'


@pytest.mark.slow
def test_a_job_that_is_not_waited_for_is_left_to_slurm(here):
  words = '--', '--do=all:count=1,wait=go', f'--folder={here.folder}'
  done = here.run(*words, f'--logdir={here.folder}', slurm_wait='false')
  assert done.returncode == 0
  assert done.stdout == ''
  assert strip_number(done.stderr) == (
    'distmnist.launch: 1 ps and 2 workers as job N of Slurm, logs in'
    f' {here.logs}\n'
  )
  assert len(here.find_jobs()) == 1
  state = watched_run.WatchedRun(str(here.folder)).look()
  assert {row.state for row in state.make_rows()} == {'not seen yet'}
  (here.folder / 'go').touch()
  here.wait_until_no_job_is_left()
  assert here.log('worker_1') == 'worker1 line 0\n'


@pytest.mark.slow
def test_what_sbatch_refuses_is_told_in_its_words(here):
  done = here.do('all:count=1', slurm_partition='nowhere')
  assert done.returncode == 1
  assert done.stderr.count('\n') == 1
  assert re.fullmatch(
    'distmnist.launch: error: no job: sbatch: error: .*nowhere; sbatch: error:'
    ' Batch job submission failed: Invalid partition name specified\n',
    done.stderr,
  )


@pytest.mark.slow
def test_a_call_from_python_trains_as_a_job_and_has_the_report(
  here, monkeypatch
):
  for name in ('PYTHONPATH', 'SLURM_CONF'):
    monkeypatch.setenv(name, here.env[name])
  flags = dict(word.removeprefix('--').split('=') for word in SMALL)
  logdir, lines = here.folder / 'run', []
  report = distmnist.run(
    launcher='slurm',
    num_ps=1,
    num_workers=2,
    evaluator=True,
    strategy='sync_sgd',
    train_steps=60,
    logdir=str(logdir),
    on_line=lines.append,
    **flags,
  )
  assert report.global_step == read_report(logdir)['global_step'] == 60
  assert report.logdir == str(logdir)
  assert any('2 workers with an evaluator as job' in line for line in lines)
  assert list((logdir / 'metrics' / 'evaluator_0').glob('events.out.*'))
  assert re.search(r'^test accuracy +0\.\d{4}$', '\n'.join(lines), re.M)
  assert (logdir / 'logs' / 'job.sbatch').exists()
  with pytest.raises(distmnist.Error, match='--learning_rate=-1'):
    distmnist.run(
      launcher='slurm',
      logdir=str(here.folder / 'other'),
      on_line=lines.append,
      **(flags | {'learning_rate': -1}),
    )
  here.wait_until_no_job_is_left()


@pytest.mark.slow
def test_a_sweep_submits_a_job_a_trial(here):
  folder = here.folder / 'sweep'
  done = subprocess.run(
    [
      *(sys.executable, '-m', 'distmnist.sweep', 'learning_rate=0.1,0.001'),
      *('--launcher=slurm', '--num_ps=0', '--num_workers=1', '--parallel=2'),
      *(f'--sweep_dir={folder}', '--', *SMALL, '--train_steps=20'),
    ],
    env=here.env,
    capture_output=True,
    text=True,
    timeout=DEADLINE_SECS,
  )
  assert done.returncode == 0, done.stdout + done.stderr
  assert len(list(folder.glob('**/job.sbatch'))) == 2
  _, *rows = (folder / 'results.csv').read_text().splitlines()
  assert len(rows) == 2
  here.wait_until_no_job_is_left()


@pytest.mark.slow
def test_an_evaluator_that_fails_ends_no_job(here):
  words = '--', '--do=evaluator0:exit=9;all:count=1', f'--logdir={here.logs}'
  done = here.run(*words, evaluator='true', num_workers=1)
  assert done.returncode == 0, done.stderr
  assert done.stdout == 'worker0 line 0\n'
  assert (
    '[slurm] job N: evaluator 0 failed: exit code 9: the run goes on without'
    ' it\n'
  ) in strip_number(done.stderr)


@pytest.mark.slow
def test_a_job_that_is_preempted_saves_and_comes_again(here):
  do = 'all@1:leave;worker0@2:print=again'
  with here.start(do, slurm_requeue='true') as running:
    running.wait_for('worker0.ready', 'worker1.ready', 'ps0.ready')
    urgent = ['sbatch', '--partition=urgent', '--exclusive', '--wrap=true']
    subprocess.run(urgent, env=here.env, check=True, timeout=200)
    wait_until(lambda: here.find_jobs() == ['PENDING'], here.find_jobs)
    # Slurm itself would wait a minute, and cannot start it in the second in
    # which it was told to end.
    number = re.search(r'as job (\d+)', running.stderr.read_text())[1]
    now = ['scontrol', 'update', f'JobId={number}', 'StartTime=now+2']
    subprocess.run(now, env=here.env, check=True, timeout=200)
    assert running.process.wait(DEADLINE_SECS) == 0
  said = strip_number(running.stderr.read_text())
  assert '[slurm] job N: cancelled due to preemption: the tasks were' in said
  assert here.log('worker_0') == (
    f'leaving on {signal.SIGTERM.value}\n--- requeued by Slurm ---\nagain\n'
  )
  here.wait_until_no_job_is_left()


@pytest.mark.slow
def test_the_ps_have_an_allocation_of_their_own(tmp_path):
  """A heterogeneous job, of two nodes; its first failure ends both parts."""
  if reason := slurm_cluster.why_not():
    pytest.skip(reason)
  folder = tmp_path / 'slurm'
  folder.mkdir()
  with slurm_cluster.start(folder, num_nodes=2) as config:
    here = Here(tmp_path / 'run', config)
    flags = {'slurm_ps_options': '--comment=ps', 'show_logs': 'all'}
    done = here.do('all:env=SLURMD_NODENAME', num_ps=2, **flags)
    assert done.returncode == 0, done.stderr
    assert '[slurm] job N: runs on n1 and n2\n' in strip_number(done.stderr)
    assert sorted(done.stdout.splitlines()) == [
      *("[ps 0] SLURMD_NODENAME='n1'", "[ps 1] SLURMD_NODENAME='n1'"),
      *("[worker 0] SLURMD_NODENAME='n2'", "[worker 1] SLURMD_NODENAME='n2'"),
    ]
    done = here.do(
      'worker0:leave;ps0:leave;'
      'worker1:wait=worker0.ready,wait=ps0.ready,exit=3',
      **flags,
    )
    assert done.returncode == 3, done.stderr
    assert 'error: worker 1 (n2) failed first' in last_line(done.stderr)
    assert here.log('ps_0').endswith(f'leaving on {signal.SIGTERM.value}\n')
    here.wait_until_no_job_is_left()


@pytest.mark.parametrize(
  ('flags', 'line'),
  [
    ([], '#SBATCH --no-requeue'),
    (['--max_restarts=1'], '#SBATCH --requeue'),
    (['--slurm_requeue'], '#SBATCH --requeue'),
    (['--max_restarts=1', '--noslurm_requeue'], '#SBATCH --no-requeue'),
  ],
)
def test_a_job_is_requeued_if_it_may_be(launch, flags, line):
  code, out, _ = launch('--dry_run', *flags, '--')
  assert code == 0
  assert line in out.splitlines()


@pytest.mark.parametrize(
  ('scontrol', 'expected'),
  [
    ("echo 'KillOnBadExit = 0'; echo 'KillWait                = 60 sec'", 60),
    ('echo no controller >&2; exit 1', 30),
    (None, 30),
  ],
)
def test_the_kill_wait_is_that_of_the_cluster(
  tmp_path, monkeypatch, scontrol, expected
):
  scripts = {'scontrol': scontrol} if scontrol else {}
  monkeypatch.setenv('PATH', programs.make(tmp_path, **scripts))
  assert slurm.read_kill_wait() == expected


@pytest.fixture
def launch(launch_here, tmp_path):
  return functools.partial(
    launch_here,
    *('--launcher=slurm', '--module=fake_train', f'--logs_dir={tmp_path}/logs'),
  )


def test_dry_run_prints_the_script_and_nothing_else_happens(launch, tmp_path):
  code, out, err = launch('--dry_run', '--', '--x=a b')
  assert code == 0, err
  assert out.startswith('#!/bin/bash\n')
  assert "-m fake_train '--x=a b'" in out
  assert os.listdir(tmp_path) == []


def test_a_machine_without_slurm_is_told_so(launch, tmp_path, monkeypatch):
  monkeypatch.setenv('PATH', str(tmp_path))
  code, out, err = launch('--')
  assert (code, out) == (1, '')
  (line,) = err.splitlines()
  assert 'sbatch' in line
  assert os.listdir(tmp_path) == []


# ---- Without Slurm: programs of the same names in its place ----


@pytest.mark.slow
def test_the_launcher_ends_with_its_job_and_not_with_sbatch(tmp_path):
  path = programs.make(
    tmp_path,
    sbatch='echo 7; exec sleep 300',
    scancel=f'echo 7 143 >{tmp_path}/logs/job_7.ended',
  )
  here = Here(tmp_path, path=path)
  with here.start('all:leave') as running:
    running.wait_for_words('as job 7')
    os.kill(running.process.pid, signal.SIGINT)
    assert running.process.wait(DEADLINE_SECS) == 130
  assert last_line(running.stderr.read_text()) == (
    f'distmnist.launch: stopped by SIGINT, logs in {here.logs}'
  )
