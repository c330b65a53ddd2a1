import logging
import os
import re

import pytest

from distmnist.common import cli
from distmnist.launchers import local
from distmnist.launching import train_flags
from distmnist.sweeps import autotune, speed_trial
from tests.support import programs
from tests.support.runner import SMALL, read_report


@pytest.fixture
def speeds(monkeypatch):
  """{words beyond those given: speed} in place of real trials."""
  found = {}

  class Runner:
    unit = 'examples'

    def __init__(self, words, folder, num_workers, secs, signals):
      assert os.path.isdir(folder)
      found['folder'], found['words'] = folder, words
      found['secs'] = secs
      self._signals = signals

    def measure(self, words):
      self._signals += found.get('signals', [])
      return found.get(' '.join(words), 100.0), 'it broke'

  monkeypatch.setattr(speed_trial, 'Runner', Runner)
  monkeypatch.setattr(
    train_flags, 'find_mistakes', lambda words, *_: [None] * len(words)
  )
  return found


def test_it_takes_what_is_faster_and_says_what_each_brings(
  set_flags, speeds, caplog
):
  set_flags('--num_ps=1', '--autotune_secs=8')
  speeds['--steps_per_run=16'] = 150.0
  with caplog.at_level(logging.INFO):
    taken, signum = autotune.run(['--num_ps=1'], ['--model=cnn'])
  assert (taken, signum) == (['--steps_per_run=16'], None)
  assert speeds['words'] == ['--num_ps=1', '--model=cnn']
  assert speeds['secs'] <= 2.0
  assert not os.path.exists(speeds['folder'])
  assert caplog.messages[-1] == 'autotune takes --steps_per_run=16'
  assert any('+50 %  taken: ' in line for line in caplog.messages)


def test_the_trials_of_other_hosts_are_where_these_see_them(
  set_flags, speeds, tmp_path
):
  set_flags('--launcher=slurm')
  autotune.run([], [f'--logdir={tmp_path}/run'])
  assert os.path.dirname(speeds['folder']) == str(tmp_path)
  assert list(tmp_path.iterdir()) == []


def test_a_run_that_does_not_start_says_why(set_flags, speeds):
  set_flags()
  speeds[''] = None
  with pytest.raises(cli.RunError, match='the run as given: it broke'):
    autotune.run([], [])


def test_a_signal_ends_it(set_flags, speeds, logged):
  set_flags()
  speeds['signals'] = [15]
  assert autotune.run([], []) == ([], 15)
  assert logged[-1] == 'SIGTERM: autotune was stopped, and nothing is taken'


@pytest.mark.parametrize(
  ('flags', 'words', 'error'),
  [
    (['--launcher=kubernetes'], [], 'cannot be tuned: expected one of local'),
    (['--launcher=ssh'], [], 'give train a --logdir on it'),
    (['--module=mine'], ['--x=1'], '--module=mine cannot be tuned'),
    ([], ['--modle=cnn'], 'modle'),
  ],
)
def test_what_cannot_be_tried_is_refused(
  set_flags, speeds, flags, words, error
):
  set_flags(*flags)
  with pytest.raises(cli.UsageError, match=error):
    autotune.run([], words)
  assert 'folder' not in speeds


def test_a_trial_gets_the_flags_but_ours(set_flags):
  set_flags(
    *('--num_ps=3', '--autotune_secs=5', '--max_restarts=2', '--dry_run'),
    '--noslurm_wait',  # A trial that is left to Slurm would never end.
  )
  words = autotune.read_given()
  assert '--num_ps=3' in words
  ours = 'autotune', 'max_r', 'dry', 'slurm'
  assert not any(name in word for name in ours for word in words)


def test_launch_runs_with_what_was_taken(speeds, monkeypatch):
  jobs, codes = [], []
  monkeypatch.setattr(local, 'launch', lambda job: jobs.append(job) or 0)
  speeds['--steps_per_run=4'] = 150.0

  def run(*words):
    argv = '--num_ps=0', '--num_workers=1', *words, '--', '--model=softmax'
    codes.append(programs.launch_inside(*argv))

  run('--autotune')
  run()
  run('--autotune', '--dry_run')
  speeds['signals'] = [2]
  run('--autotune')
  assert codes == [0, 0, 0, 130]
  assert [job.train_flags for job in jobs] == [
    ('--model=softmax', '--steps_per_run=4'),
    ('--model=softmax',),
    ('--model=softmax',),
  ]
  assert jobs[0].given == jobs[0].train_flags


@pytest.mark.slow
def test_it_tries_real_runs(tmp_path):
  _, said = programs.run_forked(
    *('launch', '--num_ps=0', '--num_workers=1'),
    *('--autotune', '--autotune_secs=1', '--', *SMALL),
    # What is given is not tried, so there is one trial.
    *('--steps_per_run=1', '--train_steps=20', f'--logdir={tmp_path}/run'),
  )
  assert re.search(
    r'^distmnist.launch: trial 1, as given: [\d,]+ images/s$', said, re.M
  )
  assert 'autotune takes the flags as given' in said
  assert read_report(tmp_path / 'run')['global_step'] >= 20
  # What the trials wrote is gone.
  assert [path.name for path in tmp_path.iterdir()] == ['run']
