"""sweep: as users run it, most with tests/fake_train.py in train's place."""

import csv
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time

import psutil
import pytest
from absl.testing import flagsaver

from distmnist import cli, sweep, trials
from tests.runner import SMALL

TESTS = pathlib.Path(__file__).resolve().parent
# Far more than anything takes where nobody else wants the cores.
DEADLINE_SECS = 100
DIVERGES = 'all:error=the_cost_is_nan:_the_training_has_diverged'


def make_command(folder, *words, module='fake_train'):
  return [
    *(sys.executable, '-m', 'distmnist.sweep', f'--sweep_dir={folder}/sweep'),
    *(f'--module={module}', *map(str, words)),
    *(() if '--' in words else ('--',)),
    *((f'--folder={folder}',) if module == 'fake_train' else ()),
  ]


def make_env():
  paths = [str(TESTS.parent), str(TESTS), os.environ.get('PYTHONPATH', '')]
  return {**os.environ, 'PYTHONPATH': ':'.join(filter(None, paths))}


def run(folder, *words, **settings):
  return subprocess.run(
    make_command(folder, *words, **settings),
    env=make_env(),
    capture_output=True,
    text=True,
    timeout=250,
  )


def run_without_folder(folder, temporary):
  """Runs a sweep of one trial whose folder is the default one."""
  command = make_command(folder, 'do=all:report=0.5')
  return subprocess.run(
    [word for word in command if not word.startswith('--sweep_dir')],
    env={**make_env(), 'TMPDIR': str(temporary)},
    capture_output=True,
    text=True,
    timeout=250,
  )


def read_table(done):
  """Returns the rows of the table on stdout, a list of dict."""
  first, *lines = done.stdout.splitlines()
  header = first.split()
  rows = [line.split(maxsplit=len(header) - 1) for line in lines]
  return [dict(zip(header, row, strict=True)) for row in rows]


def read_trial(folder, name):
  path = folder / 'sweep' / 'trials' / name / 'trial.json'
  return json.loads(path.read_text())


def read_states(folder):
  paths = sorted((folder / 'sweep' / 'trials').glob('*/trial.json'))
  return [json.loads(path.read_text())['state'] for path in paths]


def count_runs(folder):
  """Returns how often each trial has said that it ran."""
  logs = sorted((folder / 'sweep' / 'trials').glob('*/log'))
  return [log.read_text().count('ran\n') for log in logs]


def last_line(text):
  return text.splitlines()[-1]


@pytest.fixture(autouse=True)
def heed_signals():
  # Under nohup, or in the background of a script, SIGHUP or SIGINT is ignored
  # by pytest, and would be by all that it starts.
  signums = (signal.SIGINT, signal.SIGHUP)
  before = [signal.signal(n, signal.default_int_handler) for n in signums]
  yield
  for signum, handler in zip(signums, before, strict=True):
    signal.signal(signum, handler)


class Running:
  """A sweep in the background; its end is the end of all that it started."""

  def __init__(self, folder, *words, **settings):
    self._folder = folder
    self.stderr = folder / 'stderr'
    with open(self.stderr, 'w') as stderr:
      self.process = subprocess.Popen(
        make_command(folder, *words, **settings),
        env=make_env(),
        stdout=subprocess.PIPE,
        stderr=stderr,
        text=True,
      )

  def __enter__(self):
    return self

  def __exit__(self, *_):
    if self.process.poll() is None:
      self.process.kill()
    self.process.communicate()

  def wait_until(self, is_so):
    deadline = time.monotonic() + DEADLINE_SECS
    while not is_so():
      assert self.process.poll() is None, self.stderr.read_text()
      assert time.monotonic() < deadline, self.stderr.read_text()
      time.sleep(0.01)

  def wait_for(self, *names):
    """Waits for touched files."""
    paths = [self._folder / name for name in names]
    self.wait_until(lambda: all(path.exists() for path in paths))

  def all_processes(self):
    return psutil.Process(self.process.pid).children(recursive=True)


def has_ended(process):
  # An orphan may stay a zombie until a slow init looks after it.
  try:
    return process.status() == psutil.STATUS_ZOMBIE
  except psutil.NoSuchProcess:
    return True


def assert_gone(processes):
  deadline = time.monotonic() + DEADLINE_SECS
  while alive := [p for p in processes if not has_ended(p)]:
    assert time.monotonic() < deadline, alive
    time.sleep(0.01)


# ---- The command line ----


@pytest.mark.parametrize(
  'flags, words, train_flags, message',
  [
    ([], [], [], 'nothing to try'),
    ([], ['a=1..2'], [], '--random=20'),
    ([], ['a=1', 'logdir=x,y'], [], '--logdir is not for a trial'),
    ([], ['a=1'], ['--resume=never'], '--resume is not for a trial'),
    ([], ['a=1'], ['--ps_hosts', 'x:1'], '--ps_hosts is not for a trial'),
    (['--logs_dir=x'], ['a=1'], [], '--logs_dir is not for a sweep'),
    (['--zip', '--random=2'], ['a=1,2'], [], '--zip and --random exclude'),
    (['--halving=2'], ['a=1,2'], [], 'give either --train_steps or --epochs'),
    (
      ['--halving=2'],
      ['a=1,2'],
      ['--epochs=1', '--train_steps=9'],
      'give either --train_steps or --epochs',
    ),
    (
      ['--halving=2'],
      ['a=1,2', 'epochs=1,2'],
      ['--train_steps=9'],
      'do not sweep over them',
    ),
  ],
)
def test_what_cannot_work_is_refused(
  set_flags, flags, words, train_flags, message
):
  set_flags('--num_ps=0', '--num_workers=1', *flags)
  with pytest.raises(cli.UsageError) as error:
    sweep.make_plan(words, train_flags)
  assert message in str(error.value)


def test_a_flagfile_counts_as_given(set_flags, tmp_path):
  set_flags('--num_ps=0', '--num_workers=1', '--halving=2')
  path = tmp_path / 'x.flags'
  path.write_text('# x\n--train_steps=8\n')
  plan = sweep.make_plan(['a=1,2,3,4'], [f'--flagfile={path}', '--b=1'])
  assert plan['flags'] == ['--train_steps=8', '--b=1']
  assert plan['rungs'] == [
    [4, '--train_steps=2'],
    [2, '--train_steps=4'],
    [1, '--train_steps=8'],
  ]


def test_the_trials_share_the_cores(set_flags, monkeypatch):
  monkeypatch.setattr(sweep.os, 'sched_getaffinity', lambda _: range(12))

  def threads(num_parallel, *flags):
    set_flags('--num_ps=0', '--num_workers=1', *flags)
    plan = sweep.make_plan(['a=1'], ['--a=2'])
    (trial,) = trials.make_trials(plan['combinations'], 'x')
    return sweep.make_command(trial, plan, 0, num_parallel)

  alone = threads(1)
  assert alone[:3] == ['python', '-m', 'distmnist.train']
  assert '--intra_op_parallelism_threads=12' in alone
  # What a word names comes after what was given.
  assert alone.index('--a=2') < alone.index('--a=1')
  assert alone[-2:] == ['--logdir=x/01/run', '--resume=auto']
  assert '--intra_op_parallelism_threads=3' in threads(4)
  assert '--intra_op_parallelism_threads=1' in threads(99)
  launched = threads(
    *(2, '--num_ps=1', '--num_workers=3', '--max_restarts=2', '--gpus=0')
  )
  assert '--intra_op_parallelism_threads=2' in launched
  assert launched[2 : launched.index('--')] == [
    'distmnist.launch',
    '--max_restarts=2',
    '--num_ps=1',
    '--num_workers=3',
    '--module=distmnist.train',
    '--logs_dir=x/01/logs',
  ]
  assert 'threads' not in ' '.join(threads(2, '--launcher=ssh'))


@pytest.mark.parametrize(
  'gpus, num_parallel, shares',
  [
    (['0', '1', '2'], 2, [['0', '2'], ['1']]),
    (['4', '5'], 3, [['4'], ['5'], ['4']]),
    (['0'], 1, [['0']]),
    ([], 2, [[], []]),
  ],
)
def test_the_trials_share_the_gpus(gpus, num_parallel, shares):
  found = [sweep.share_gpus(gpus, num_parallel, i) for i in range(num_parallel)]
  assert found == shares


def test_dry_run_prints_a_command_a_trial_and_leaves_nothing(tmp_path):
  done = run(tmp_path, 'a=1,2', 'b=x', '--dry_run', '--', '--c=it s')
  assert (done.returncode, done.stderr) == (0, '')
  first, second = done.stdout.splitlines()
  assert first.startswith('python -m fake_train --intra_op')
  assert f"'--c=it s' --folder={tmp_path} --a=1 --b=x --logdir=" in first
  assert '--a=2' in second
  assert list(tmp_path.iterdir()) == []


SECRETS = (
  '--launcher=spark',
  '--master=yarn',
  '--spark_conf=spark.ssl.keyPassword=hunter2',
  '--spark_conf=spark.hadoop.fs.s3a.secret.key=hunter3',
  '--spark_conf=spark.ssl.keyStore=/home/me/store',
)


def test_a_dry_run_shows_no_secret(tmp_path):
  done = run(tmp_path, 'a=1', *SECRETS, '--dry_run')
  assert done.returncode == 0, done.stderr
  assert 'hunter' not in done.stdout + done.stderr
  for word in (
    '--spark_conf=spark.ssl.keyPassword=...',
    '--spark_conf=spark.hadoop.fs.s3a.secret.key=...',
    '--spark_conf=spark.ssl.keyStore=/home/me/store',
  ):
    assert f' {word} ' in done.stdout


@pytest.fixture
def launch_flags():
  sweep.FLAGS.unparse_flags()
  with flagsaver.flagsaver():
    sweep.FLAGS(['sweep', *SECRETS])
    yield


def test_no_secret_is_in_the_command_of_a_trial(launch_flags):
  assert sweep.find_launch_flags('/own/file') == [
    '--flagfile=/own/file',
    '--launcher=spark',
    '--master=yarn',
    '--spark_conf=spark.ssl.keyStore=/home/me/store',
  ]
  assert sweep.find_secrets() == list(SECRETS[2:4])


def test_the_same_command_finds_its_folder_again(tmp_path):
  def find(*words):
    done = subprocess.run(
      [sys.executable, '-m', 'distmnist.sweep', '--dry_run', *words],
      env={**make_env(), 'TMPDIR': str(tmp_path)},
      capture_output=True,
      text=True,
    )
    return done.stdout.split('--logdir=')[1].split('/trials')[0]

  assert find('seed=1,2') == find('seed=1,2', '--parallel=2')
  assert find('seed=1,2') != find('seed=1,3')
  assert find('seed=1,2').startswith(f'{tmp_path}/distmnist_sweep_')


# ---- Trials that are no trainings ----


@pytest.mark.slow
def test_the_best_is_first_and_a_failure_stops_no_other(tmp_path):
  words = [
    'x=a,b,c,d',
    f'do=all:report=0.5;all:error=the_disk_is_full;{DIVERGES};all:report=0.9',
    '--zip',
  ]
  done = run(tmp_path, *words)
  rows = read_table(done)
  assert [(row['trial'], row['x']) for row in rows] == [
    ('04', 'd'),
    ('01', 'a'),
    ('02', 'b'),
    ('03', 'c'),
  ]
  assert read_states(tmp_path) == ['done', 'failed', 'diverged', 'done']
  assert done.returncode == 1
  folder = tmp_path / 'sweep'
  assert last_line(done.stderr) == (
    'distmnist.sweep: error: trial 02 (x=b do=all:error=the_disk_is_full) '
    f'failed: the disk is full; log: {folder}/trials/02/log; once repaired, '
    '--retry_failed runs it again'
  )
  assert 'best by validation accuracy: trial 04' in done.stderr
  with open(folder / 'results.csv', newline='') as file:
    found = list(csv.DictReader(file))
  assert [row['state'] for row in found] == [
    'done',
    'done',
    'failed',
    'diverged',
  ]
  assert found[0]['validation'] == '0.9000' and found[0]['test'] == '0.4500'
  assert found[2]['cause'] == 'the disk is full'


@pytest.mark.slow
def test_what_has_ended_is_not_run_again(tmp_path):
  words = ['do=all:print=ran,report=0.5;all:print=ran,error=no;all:print=ran']
  first = run(tmp_path, *words)
  # The last one has left no report.
  assert read_states(tmp_path) == ['done', 'failed', 'failed']
  assert 'it has left no report' in read_trial(tmp_path, '03')['cause']
  second = run(tmp_path, *words)
  assert second.stdout == first.stdout
  assert '3 at a time' not in second.stderr
  assert 'all have ended' in second.stderr
  assert count_runs(tmp_path) == [1, 1, 1]
  third = run(tmp_path, *words, '--retry_failed', '--parallel=3')
  assert '2 are left to run' in third.stderr
  assert count_runs(tmp_path) == [1, 2, 2]
  assert third.returncode == 1


@pytest.mark.slow
def test_as_many_as_asked_for_run_at_the_same_time(tmp_path):
  do = (
    'do=all:touch=a,wait=worker0.b,report=0.5;'
    'all:touch=b,wait=worker0.a,report=0.6;all:report=0.7'
  )
  done = run(tmp_path, do, '--parallel=2')
  assert done.returncode == 0, done.stderr
  assert [row['trial'] for row in read_table(done)] == ['03', '02', '01']


@pytest.mark.slow
def test_a_folder_is_for_one_sweep(tmp_path):
  assert run(tmp_path, 'do=all:report=0.1;all:report=0.2').returncode == 0
  done = run(tmp_path, 'do=all:report=0.1;all:report=0.3')
  assert done.returncode == 2
  assert done.stderr == (
    f'distmnist.sweep: error: --sweep_dir={tmp_path}/sweep holds another '
    'sweep: its combinations were 2 from do=all:report=0.1 on and not 2 from '
    'do=all:report=0.1 on; give the same command line again, or another '
    'folder (see distmnist.sweep --help)\n'
  )
  done = run(tmp_path, 'do=all:report=0.1;all:report=0.2', '--', '--y=1')
  assert done.returncode == 2
  assert 'its flags were' in done.stderr


@pytest.mark.slow
def test_two_sweeps_on_one_folder_are_refused(tmp_path):
  words = ['do=all:leave=on;all:report=0.5']
  with Running(tmp_path, *words) as running:
    running.wait_for('worker0.on')
    done = run(tmp_path, *words)
    assert done.returncode == 2
    assert 'is in use by another sweep' in done.stderr
    running.process.send_signal(signal.SIGTERM)
    assert running.process.wait(DEADLINE_SECS) == 143


@pytest.mark.slow
@pytest.mark.parametrize('signum', [signal.SIGINT, signal.SIGTERM])
def test_a_signal_has_the_trials_save_and_leave(tmp_path, signum):
  words = [
    'do=all:report=0.5,print=ran;all:print=ran,leave=a;all:leave=b;all:exit=1',
    '--parallel=2',
  ]
  with Running(tmp_path, *words) as running:
    running.wait_for('worker0.a', 'worker0.b')
    processes = running.all_processes()
    assert len(processes) == 3
    running.process.send_signal(signum)
    assert running.process.wait(DEADLINE_SECS) == 128 + signum
    assert_gone(processes)
    out = running.process.stdout.read()
  assert read_states(tmp_path) == ['done', 'stopped', 'stopped']
  assert [line.split()[0] for line in out.splitlines()] == [
    *('trial', '01', '02', '03', '04')
  ]
  assert 'waiting' in last_line(out)
  assert last_line(running.stderr.read_text()) == (
    f'distmnist.sweep: stopped by {signal.Signals(signum).name}: the same '
    f'command goes on, with --sweep_dir={tmp_path}/sweep'
  )
  logs = tmp_path / 'sweep' / 'trials'
  assert 'leaving on 15' in (logs / '02' / 'log').read_text()


@pytest.mark.slow
def test_a_sweep_that_was_killed_runs_what_is_missing(tmp_path):
  words = [
    'do=all:print=ran,report=0.5;all:print=ran,touch=on,wait=go,report=0.7;'
    'all:print=ran,report=0.6'
  ]
  with Running(tmp_path, *words) as running:
    running.wait_for('worker0.on')
    processes = running.all_processes()
    running.process.kill()
    running.process.wait()
    # The lock of the trials is theirs as long as they are there.
    assert_gone(processes)
  assert read_states(tmp_path) == ['done', 'running']
  (tmp_path / 'go').write_text('')
  done = run(tmp_path, *words)
  assert done.returncode == 0, done.stderr
  assert '2 are left to run' in done.stderr
  assert count_runs(tmp_path) == [1, 2, 1]
  assert [row['trial'] for row in read_table(done)] == ['02', '03', '01']


@pytest.mark.slow
def test_a_trial_that_never_ends_is_told_to_leave_and_stops_no_other(tmp_path):
  words = [
    'do=all:print=ran,leave=a,report=1;all:print=ran,deaf,write=half,forever;'
    'all:print=ran,report=0.5',
    *('--trial_timeout_secs=1', '--', '--stop_grace_secs=2'),
  ]
  with Running(tmp_path, *words) as running:
    running.wait_for('worker0.a')
    processes = running.all_processes()
    assert running.process.wait(DEADLINE_SECS) == 1
    assert_gone(processes)
  assert read_states(tmp_path) == ['failed', 'failed', 'done']
  for name in ('01', '02'):
    trial = read_trial(tmp_path, name)
    assert trial['cause'] == 'not done within --trial_timeout_secs=1'
    assert trial['secs'] >= 1
  log = tmp_path / 'sweep' / 'trials' / '01' / 'log'
  assert 'leaving on 15' in log.read_text()
  assert last_line(running.stderr.read_text()) == (
    'distmnist.sweep: error: trial 01 (do=all:print=ran,leave=a,report=1)'
    ' failed, the first of 2 that did: not done within --trial_timeout_secs=1;'
    f' log: {log}; once repaired, --retry_failed runs it again'
  )
  # It has no part in what makes a sweep this one.
  assert 'all have ended' in run(tmp_path, words[0], *words[2:]).stderr


@pytest.mark.slow
def test_halving_gives_the_best_more_steps(tmp_path):
  reports = ('0.1', '0.4', '0.2', '0.3')
  do = ';'.join(f'all:print=ran,report={r}' for r in reports)
  words = [f'do={do}', '--halving=2', '--', '--train_steps=8']
  done = run(tmp_path, *words)
  assert done.returncode == 0, done.stderr
  steps = [
    [r['global_step'] for r in read_trial(tmp_path, name)['results']]
    for name in ('01', '02', '03', '04')
  ]
  assert steps == [[2], [2, 4, 8], [2], [2, 4]]
  assert read_states(tmp_path) == ['dropped', 'done', 'dropped', 'dropped']
  assert [row['trial'] for row in read_table(done)] == ['02', '04', '03', '01']
  assert 'rung 1: 2 of 4 go on\n' in done.stderr
  assert 'all have ended' in run(tmp_path, *words).stderr
  assert count_runs(tmp_path) == [1, 3, 1, 2]


@pytest.mark.slow
def test_halving_goes_on_within_a_rung_and_counts_no_failure(tmp_path):
  reports = (
    'all:print=ran,report=0.4;all:error=no;'
    'all:print=ran,report=0.2;all:print=ran,touch=on,wait=go,report=0.3'
  )
  words = [f'do={reports}', '--halving=2', '--', '--train_steps=8']
  with Running(tmp_path, *words) as running:
    running.wait_for('worker0.on')
    processes = running.all_processes()
    running.process.kill()
    running.process.wait()
    # Who is still there would see that it may go on.
    assert_gone(processes)
  (tmp_path / 'go').write_text('')
  done = run(tmp_path, *words)
  assert done.returncode == 1
  assert '1 is left to run' in done.stderr
  assert read_states(tmp_path) == ['done', 'failed', 'dropped', 'dropped']
  assert count_runs(tmp_path) == [3, 0, 1, 3]


@pytest.mark.slow
def test_a_cluster_a_trial(tmp_path):
  do = 'all:touch=x,report=0.5;worker1:error=boom'
  done = run(
    *(tmp_path, f'do={do}', '--num_ps=1', '--num_workers=2', '--isolate=off')
  )
  assert done.returncode == 1, done.stderr
  assert read_states(tmp_path) == ['done', 'failed']
  assert read_trial(tmp_path, '02')['cause'] == 'boom'
  logs = tmp_path / 'sweep' / 'trials' / '01' / 'logs'
  assert sorted(path.name for path in logs.iterdir()) == [
    'ps_0.log',
    'worker_0.log',
    'worker_1.log',
  ]


# ---- Trainings ----

REAL = ('--', *SMALL, '--optimizer=sgd')


@pytest.mark.slow
@pytest.mark.parametrize(
  'words, message',
  [
    (
      ['learning_rat=0.1,1'],
      "error: Unknown command line flag 'learning_rat'. Did you mean",
    ),
    (
      ['learning_rate=0.1', 'batch_size=32,3000'],
      'error: no trial was started: with learning_rate=0.1 batch_size=3000: '
      '--batch_size=3000 is larger',
    ),
    (
      ['strategy=easgd,magic,wand'],
      'error: flag --strategy=magic: value should be one of',
    ),
  ],
)
def test_what_train_would_refuse_is_refused_before_the_first(
  tmp_path, words, message
):
  done = run(tmp_path, *words, *REAL, module='distmnist.train')
  assert done.returncode == 2
  assert last_line(done.stderr).startswith(f'distmnist.sweep: {message}')
  assert done.stdout == ''
  assert read_states(tmp_path) == []


@pytest.mark.slow
def test_twelve_trials_survive_a_failure_a_divergence_and_a_kill(tmp_path):
  """One cannot write its logdir, one has a rate beyond all floats."""
  rates = [f'{0.01 * 1.5**i:.4f}' for i in range(11)] + ['1e38']
  steps = [str(60 + i) for i in range(12)]
  words = [
    *(f'learning_rate={",".join(rates)}', f'train_steps={",".join(steps)}'),
    *('--zip', '--parallel=2', *REAL),
  ]
  folder = tmp_path / 'sweep' / 'trials'
  (folder / '05').mkdir(parents=True)
  (folder / '05' / 'run').write_text('in the way')
  with Running(tmp_path, *words, module='distmnist.train') as running:
    running.wait_until(lambda: len(read_states(tmp_path)) >= 7)
    processes = running.all_processes()
    running.process.kill()
    running.process.wait()
    assert_gone(processes)
  before = {
    path.parent.name: path.read_text()
    for path in folder.glob('*/trial.json')
    if '"running"' not in path.read_text()
  }
  # A training may have ended when nobody was there any more to note it.
  ended = set(before) | {p.parts[-3] for p in folder.glob('*/run/report.json')}
  assert 5 <= len(ended) < 12
  logs = {name: (folder / name / 'log').read_text() for name in ended}
  done = run(tmp_path, *words, module='distmnist.train')
  assert re.search(
    rf'; {12 - len(ended)} (is|are) left to run$', done.stderr, re.M
  )
  for name, text in before.items():
    assert (folder / name / 'trial.json').read_text() == text
  for name, text in logs.items():
    assert (folder / name / 'log').read_text() == text
  rows = read_table(done)
  assert len(rows) == 12
  assert [(row['trial'], row['state']) for row in rows[-2:]] == [
    ('05', 'failed'),
    ('12', 'diverged'),
  ]
  assert all(row['state'] == 'done' for row in rows[:-2])
  accuracies = [float(row['validation']) for row in rows[:-2]]
  assert accuracies == sorted(accuracies, reverse=True)
  assert accuracies[0] > accuracies[-1] + 0.1
  assert done.returncode == 1
  line = last_line(done.stderr)
  assert 'trial 05 (learning_rate=0.0506 train_steps=64) failed' in line
  assert 'run cannot be written' in line
  pytest.importorskip('matplotlib', reason='extra plots')
  plot = tmp_path / 'sweep' / 'results.png'
  assert plot.read_bytes().startswith(b'\x89PNG')


@pytest.mark.slow
def test_halving_continues_each_training_from_its_checkpoint(tmp_path):
  words = ['learning_rate=0.0001,0.1,0.01,1', '--halving=2', '--parallel=2']
  done = run(
    *(tmp_path, *words, *REAL, '--train_steps=80'), module='distmnist.train'
  )
  assert done.returncode == 0, done.stderr
  best = read_table(done)[0]
  assert (best['state'], best['steps']) == ('done', '80')
  log = tmp_path / 'sweep' / 'trials' / best['trial'] / 'log'
  text = log.read_text()
  for step in (20, 40):
    assert f'run/model.ckpt-{step}' in text
  assert 'step 80/80' in text


def test_the_default_folder_is_the_users_own(tmp_path):
  temporary = tmp_path / 'temporary'
  temporary.mkdir()
  assert run_without_folder(tmp_path, temporary).returncode == 0
  (folder,) = temporary.glob('distmnist_sweep_*')
  assert folder.stat().st_mode & 0o777 == 0o700
  folder.chmod(0o777)
  done = run_without_folder(tmp_path, temporary)
  assert done.returncode == 2
  assert last_line(done.stderr).startswith(
    f'distmnist.sweep: error: {folder} lets others write to it (mode 777), and'
    ' a sweep without --sweep_dir needs a folder of its own: give --sweep_dir'
  )
  folder.rename(temporary / 'elsewhere')
  folder.symlink_to(temporary / 'elsewhere')
  done = run_without_folder(tmp_path, temporary)
  assert done.returncode == 2
  assert f'{folder} is a link, and' in last_line(done.stderr)
