"""A trial on Spark: what decides whether it has ended or starts again."""

import signal
import types

import pytest

from distmnist.common import cli
from distmnist.spark import sweep_trial
from distmnist.sweeps import runners


def make_trial(tmp_path, name='01', **settings):
  command = runners.Command(name, [], str(tmp_path / 'log'))
  trial = sweep_trial.SparkTrial(command)
  job = types.SimpleNamespace(has_ended=True, error=settings.pop('error', None))
  job.explain = lambda: str(job.error)
  trial.begin('01.1', job)
  for setting, value in settings.items():
    setattr(trial, setting, value)
  return trial


def test_its_title_says_what_it_is(tmp_path):
  assert make_trial(tmp_path).title == 'trial 01'
  assert make_trial(tmp_path, 'check').title == 'the check'


@pytest.mark.parametrize(
  ('settings', 'is_stopping', 'code'),
  [
    ({'code': 3}, False, 3),
    ({'code': 3}, True, 3),
    ({}, True, -15),
    ({}, False, None),
    ({'number': sweep_trial.MAX_RESTARTS}, False, None),
    ({'number': sweep_trial.MAX_RESTARTS + 1}, False, cli.LOST),
  ],
)
def test_its_code(tmp_path, settings, is_stopping, code):
  assert make_trial(tmp_path, **settings).find_code(is_stopping) == code


@pytest.mark.parametrize('end', [None, cli.NOT_SAVED, -signal.SIGKILL])
def test_one_that_was_told_to_stop_starts_again_whatever_it_lost(tmp_path, end):
  received = [{'end': end}]
  connection = types.SimpleNamespace(
    receive=lambda: received, send=lambda **_: None
  )
  trial = make_trial(tmp_path, connection=connection, is_told_to_stop=True)
  trial.read(stop_secs=1, is_stopping=False)
  assert trial.find_code(is_stopping=False) is None


def test_it_knows_why_it_was_lost(tmp_path):
  trial = make_trial(tmp_path)
  trial.find_code(False)
  assert trial.lost == 'Spark has ended its task'
  trial = make_trial(tmp_path, error=ValueError('refused'))
  trial.find_code(False)
  assert trial.lost == 'refused'


def test_a_new_start_knows_nothing_of_the_last(tmp_path):
  trial = make_trial(tmp_path, code=1, lost='x', deadline=1.0, connection=3)
  trial.begin('01.2', None)
  assert (trial.number, trial.key) == (2, '01.2')
  assert trial.code is trial.deadline is trial.connection is None
  assert trial.lost == ''
