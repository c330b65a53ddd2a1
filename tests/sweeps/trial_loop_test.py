"""Trials on their way: they end, are stopped, or go on where they were."""

import signal
import types

import pytest

from distmnist.common import cli, files
from distmnist.sweeps import trial_loop, trials
from tests.support import background, sweeps

pytestmark = pytest.mark.usefixtures('heed_signals')


@pytest.mark.slow
def test_what_has_ended_is_not_run_again(tmp_path):
  words = ['do=all:print=ran,report=0.5;all:print=ran,error=no;all:print=ran']
  first = sweeps.run(tmp_path, *words)
  # The last one has left no report.
  assert sweeps.read_states(tmp_path) == ['done', 'failed', 'failed']
  assert 'it has left no report' in sweeps.read_trial(tmp_path, '03')['cause']
  second = sweeps.run(tmp_path, *words)
  assert second.stdout == first.stdout
  assert '3 at a time' not in second.stderr
  assert 'all have ended' in second.stderr
  assert sweeps.count_runs(tmp_path) == [1, 1, 1]
  third = sweeps.run(tmp_path, *words, '--retry_failed', '--parallel=3')
  assert '2 are left to run' in third.stderr
  assert sweeps.count_runs(tmp_path) == [1, 2, 2]
  assert third.returncode == 1


@pytest.mark.slow
def test_a_signal_has_the_trials_save_and_leave(tmp_path):
  words = [
    'do=all:report=0.5,print=ran;all:print=ran,leave=a;all:leave=b;all:exit=1',
    '--parallel=2',
  ]
  with sweeps.Running(tmp_path, *words) as running:
    running.wait_for_files('worker0.a', 'worker0.b')
    processes = running.all_processes()
    assert len(processes) == 3
    running.process.send_signal(signal.SIGINT)
    assert running.process.wait(sweeps.DEADLINE_SECS) == 130
    background.assert_gone(processes)
    out = running.process.stdout.read()
  assert sweeps.read_states(tmp_path) == ['done', 'stopped', 'stopped']
  assert [line.split()[0] for line in out.splitlines()] == [
    *('trial', '01', '02', '03', '04')
  ]
  assert 'waiting' in background.last_line(out)
  assert background.last_line(running.stderr.read_text()) == (
    'distmnist.sweep: stopped by SIGINT: the same '
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
  with sweeps.Running(tmp_path, *words) as running:
    running.wait_for_files('worker0.on')
    running.kill()
  assert sweeps.read_states(tmp_path) == ['done', 'running']
  (tmp_path / 'go').write_text('')
  done = sweeps.run(tmp_path, *words)
  assert done.returncode == 0, done.stderr
  assert '2 are left to run' in done.stderr
  assert sweeps.count_runs(tmp_path) == [1, 2, 1]
  assert [row['trial'] for row in sweeps.read_table(done)] == ['02', '03', '01']


@pytest.mark.daily
@pytest.mark.slow
def test_a_trial_that_never_ends_is_told_to_leave_and_stops_no_other(tmp_path):
  words = [
    'do=all:print=ran,leave=a,report=1;all:print=ran,deaf,write=half,forever;'
    'all:print=ran,report=0.5',
    *('--trial_timeout_secs=3', '--parallel=2'),
    *('--', '--stop_grace_secs=2'),
  ]
  with sweeps.Running(tmp_path, *words) as running:
    running.wait_for_files('worker0.a')
    processes = running.all_processes()
    assert running.process.wait(sweeps.DEADLINE_SECS) == 1
    background.assert_gone(processes)
  assert sweeps.read_states(tmp_path) == ['failed', 'failed', 'done']
  for name in ('01', '02'):
    trial = sweeps.read_trial(tmp_path, name)
    assert trial['cause'] == 'not done within --trial_timeout_secs=3'
    assert trial['secs'] >= 3
  log = tmp_path / 'sweep' / 'trials' / '01' / 'log'
  assert 'leaving on 15' in log.read_text()
  assert background.last_line(running.stderr.read_text()) == (
    'distmnist.sweep: error: trial 01 (do=all:print=ran,leave=a,report=1)'
    ' failed, the first of 2 that did: not done within --trial_timeout_secs=3;'
    f' log: {log}; once repaired, --retry_failed runs it again'
  )
  # The limit is no part of what a sweep is known by.
  assert 'all have ended' in sweeps.run(tmp_path, words[0], *words[2:]).stderr


@pytest.mark.daily
@pytest.mark.slow
def test_halving_goes_on_within_a_rung_and_counts_no_failure(tmp_path):
  reports = (
    'all:print=ran,report=0.4;all:error=no;'
    'all:print=ran,report=0.2;all:print=ran,touch=on,wait=go,report=0.3'
  )
  words = [f'do={reports}', '--halving=2', '--', '--train_steps=8']
  with sweeps.Running(tmp_path, *words) as running:
    running.wait_for_files('worker0.on')
    running.kill()
  (tmp_path / 'go').write_text('')
  done = sweeps.run(tmp_path, *words)
  assert done.returncode == 1
  assert '1 is left to run' in done.stderr
  assert 'rung 1: 2 of 4 go on\n' in done.stderr
  assert sweeps.read_states(tmp_path) == [
    *('done', 'failed', 'dropped', 'dropped')
  ]
  names = '01', '03', '04'
  assert [
    [r['global_step'] for r in sweeps.read_trial(tmp_path, name)['results']]
    for name in names
  ] == [[2, 4, 8], [2], [2, 4]]
  assert [row['trial'] for row in sweeps.read_table(done)] == [
    *('01', '04', '03', '02')
  ]
  assert 'all have ended' in sweeps.run(tmp_path, *words).stderr
  assert sweeps.count_runs(tmp_path) == [3, 0, 1, 3]


class FakeRunner:
  """Ends with `code`, after it has written `mistakes`."""

  def __init__(self, mistakes=None, code=0, log=''):
    self.mistakes, self.code, self.log = mistakes, code, log
    self.stopped = False

  def start(self, command):
    assert command.env == {'SENT': 'x'}
    (path,) = command.argv[3:]
    self.asked = files.read_json(path)
    if self.mistakes is not None:
      files.write_json(f'{path}.checked', self.mistakes)
    with open(command.log, 'w') as file:
      file.write(self.log)
    return 0

  def wait(self):
    return [] if self.code is None else [('check', self.code)]

  def stop(self, grace_secs):
    self.stopped = True


@pytest.fixture
def check(tmp_path):
  found = trials.make_trials([{'a': '1'}, {'a': '2'}], 'x')
  command = types.SimpleNamespace(
    spec=types.SimpleNamespace(num_ps=1, num_workers=2),
    env={'SENT': 'x'},
    make_train_flags=lambda trial, rung: [trial.name, str(rung)],
  )
  return lambda runner: trial_loop.check_combinations(
    runner, command, found, str(tmp_path)
  )


def test_all_are_checked_at_once_and_nothing_is_left(check, tmp_path):
  runner = FakeRunner(['', ''])
  check(runner)
  assert runner.asked == {
    'num_ps': 1,
    'num_workers': 2,
    'needs_data': True,
    'flags': [['01', '0'], ['02', '0']],
  }
  assert list(tmp_path.iterdir()) == []


def test_the_first_mistake_is_named(check):
  with pytest.raises(cli.UsageError, match='started: with a=2: too big$'):
    check(FakeRunner(['', 'too big']))
  with pytest.raises(cli.UsageError, match=r'a=1: no \(2 of 2 cannot work\)$'):
    check(FakeRunner(['no', 'too big']))


def test_a_check_that_fails_says_why(check):
  log = 'distmnist.check_flags: error: no memory\n'
  with pytest.raises(cli.RunError, match='cannot be checked: no memory'):
    check(FakeRunner(code=1, log=log))


def test_a_signal_ends_it(check):
  runner = FakeRunner(code=None)
  check(runner)
  assert runner.stopped
