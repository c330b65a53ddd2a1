"""A study: which flags are the sweep's own, and which are wrong."""

import dataclasses
import json

import pytest

from distmnist.common import cli
from distmnist.sweeps import search_space
from distmnist.sweeps import study as study_lib


def make_study(**settings):
  return study_lib.Study(
    **{
      'combinations': [{'batch_size': '32'}],
      'flags': ['--epochs=1'],
      'num_ps': 0,
      'num_workers': 1,
      'module': 'distmnist.train',
      'rungs': [[1, '']],
      **settings,
    }
  )


def test_json_holds_it():
  study = dataclasses.asdict(make_study())
  assert json.loads(json.dumps(study)) == study


def test_one_worker_with_no_ps_is_no_cluster():
  assert not make_study().is_cluster
  assert make_study(num_ps=1).is_cluster
  assert make_study(num_workers=2).is_cluster


def test_its_trials_have_the_grace_that_their_flags_say():
  assert make_study(flags=['--stop_grace_secs=3']).stop_grace_secs == 3
  with pytest.raises(cli.UsageError, match='--stop_grace_secs=x'):
    assert make_study(flags=['--stop_grace_secs=x']).stop_grace_secs


@pytest.mark.parametrize(
  'settings',
  [
    {'flags': ['--batch_size=0']},
    {'combinations': [{'batch_size': '32'}, {'batch_size': '0'}]},
  ],
)
def test_a_flag_that_is_wrong_by_itself_is_refused(settings):
  with pytest.raises(cli.UsageError, match='--batch_size=0'):
    make_study(**settings).check_flags()
  # Another program has flags of its own.
  make_study(module='fake_train', **settings).check_flags()


def test_what_the_sweep_gives_is_given_by_nobody_else():
  choices = search_space.parse(['seed=1,2'])
  study_lib.check_names(choices, ['--epochs=1'])
  with pytest.raises(cli.UsageError, match='--logdir is not for a trial'):
    study_lib.check_names(choices, ['--logdir=x'])
  with pytest.raises(cli.UsageError, match='--resume is not for a trial'):
    study_lib.check_names(search_space.parse(['resume=auto']), [])
