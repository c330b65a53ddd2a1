"""proposing: each trial is chosen by what came of those before it."""

import math
import sys

import pytest

from distmnist.common import cli
from distmnist.sweeps import proposing, study, trials

WORDS = ['rate=1e-4..1', 'batch_size=16..64', 'optimizer=sgd,adam']


@pytest.fixture
def make(tmp_path):
  """Returns make(num_trials, words) -> Proposer."""
  pytest.importorskip('optuna')

  def make_proposer(num_trials=4, words=WORDS):
    proposed = {'words': words, 'seed': 3}
    whole = study.Study([], [], 0, 1, 'x', [[num_trials, '']], proposed)
    return proposing.Proposer(whole, str(tmp_path))

  return make_proposer


def end(trial, accuracy, state=trials.DONE):
  trial.state = state
  if state == trials.DONE:
    trial.results = [{'validation_accuracy': accuracy, 'test_accuracy': 0.0}]
  return trial


def run(proposer, number, judge):
  found = []
  for _ in range(number):
    found.append(end(proposer.propose(found), None, trials.FAILED))
    end(found[-1], judge(found[-1].combination))
  return found


def test_it_goes_where_the_best_trials_are(make):
  def judge(combination):
    far = abs(math.log10(float(combination['rate'])) + 2)
    return 1 - far / 10 - 0.3 * (combination['optimizer'] == 'sgd')

  found = run(make(40), 40, judge)
  assert [t.name for t in found[:2]] == ['01', '02']
  scores = [judge(trial.combination) for trial in found]
  assert sum(scores[20:]) / 20 > sum(scores[:10]) / 10 + 0.1
  assert max(scores) > 0.95


def test_values_are_within_their_choices_and_have_four_digits(make):
  for trial in run(make(12), 12, lambda _: 0.5):
    rate, size, optimizer = trial.combination.values()
    assert 1e-4 <= float(rate) <= 1 and len(rate.strip('0.').split('e')[0]) <= 5
    assert 16 <= int(size) <= 64
    assert optimizer in ('sgd', 'adam')


def test_the_same_results_have_the_same_proposal(make):
  first = run(make(), 3, lambda _: 0.5)
  assert run(make(), 3, lambda _: 0.5) == first
  assert len({str(trial.combination) for trial in first}) == 3


def test_of_a_trial_that_runs_or_was_lost_no_result_is_needed(make):
  proposer, found = make(), []
  for state in trials.RUNNING, trials.FAILED, trials.DIVERGED, trials.STOPPED:
    found.append(end(proposer.propose(found), None, state))
  assert proposer.propose(found).number == 5


def test_those_of_an_earlier_run_are_known(make):
  for trial in run(make(), 2, lambda _: 0.5):
    trial.begin()
  found = make().find_known()
  assert [t.combination for t in found] == [
    t.combination for t in run(make(), 2, lambda _: 0.5)
  ]
  assert [t.state for t in found] == [trials.WAITING] * 2  # It is not loaded.


@pytest.mark.parametrize(
  'combination',
  [
    None,
    {'logdir': '/'},
    {'rate': '2', 'batch_size': '16', 'optimizer': 'sgd'},
    {'rate': '0.1', 'batch_size': '16 --x', 'optimizer': 'sgd'},
    {'rate': 0.1, 'batch_size': '16', 'optimizer': 'sgd'},
    {'rate': '0.1', 'batch_size': '16', 'optimizer': 'other'},
  ],
)
def test_a_combination_that_is_none_of_the_choices_is_refused(
  make, combination
):
  trial = make().propose([])
  trial.combination = combination
  trial.begin()
  with pytest.raises(cli.RunError, match='01/trial.json has combination'):
    make().find_known()


def test_each_end_is_checked_before(make):
  found = [trial.combination for trial in make().make_probes()]
  assert found == [
    {'rate': '0.0001', 'batch_size': '16', 'optimizer': 'sgd'},
    {'rate': '1.0', 'batch_size': '64', 'optimizer': 'adam'},
  ]


def test_without_optuna_it_is_refused_in_one_line(monkeypatch):
  monkeypatch.setitem(sys.modules, 'optuna', None)
  with pytest.raises(cli.UsageError, match='--sampler=tpe needs Optuna') as why:
    proposing.check_ready()
  assert '\n' not in str(why.value) and 'distmnist[tpe]' in str(why.value)
