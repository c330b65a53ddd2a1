"""halving: which rungs there are, by hand."""

import pytest

from distmnist.common import cli
from distmnist.sweeps import halving, trials
from tests.support.trials import make_repeats, make_trial


@pytest.mark.parametrize(
  'trials, eta, name, budget, rungs',
  [
    (
      12,
      3,
      'train_steps',
      '900',
      [(12, '--train_steps=100'), (4, '--train_steps=300')]
      + [(1, '--train_steps=900')],
    ),
    (
      8,
      2,
      'epochs',
      '4',
      [(8, '--epochs=0.5'), (4, '--epochs=1'), (2, '--epochs=2')]
      + [(1, '--epochs=4')],
    ),
    (
      7,
      4,
      'train_steps',
      '10',
      [(7, '--train_steps=2')] + [(1, '--train_steps=10')],
    ),
    (2, 3, 'epochs', '1.5', [(2, '--epochs=1.5')]),
    (3, 3, 'epochs', '1', [(3, '--epochs=0.3333333333'), (1, '--epochs=1')]),
  ],
)
def test_rungs(trials, eta, name, budget, rungs):
  found = halving.compute_rungs(trials, eta, name, budget)
  assert [tuple(rung) for rung in found] == rungs


def test_the_rungs_cost_what_the_docstring_says():
  n, eta = 81, 3
  rungs = halving.compute_rungs(n, eta, 'train_steps', '8100')
  steps = [int(flag.partition('=')[2]) for _, flag in rungs]
  # A rung goes on from the one before it.
  cost = sum(
    number * (now - before)
    for (number, _), now, before in zip(rungs, steps, [0, *steps], strict=False)
  )
  assert [number for number, _ in rungs] == [81, 27, 9, 3, 1]
  assert 0 < cost <= (4 + 1) / eta**4 * n * 8100


@pytest.mark.parametrize('budget', ['0', '-3', 'x', 'nan', 'inf', '1.5'])
def test_a_budget_that_is_none_is_refused(budget):
  with pytest.raises(cli.UsageError, match=f'--train_steps={budget}: expected'):
    halving.compute_rungs(9, 3, 'train_steps', budget)


def test_a_first_rung_without_a_step_is_refused():
  with pytest.raises(cli.UsageError, match='=8 is too little for --halving=3'):
    halving.compute_rungs(9, 3, 'train_steps', '8')


@pytest.mark.parametrize(
  ('choices', 'given'),
  [
    ({}, []),
    ({}, ['--epochs=1', '--train_steps=9']),
    ({'epochs': None}, ['--train_steps=9']),
  ],
)
def test_it_has_to_be_clear_how_long_a_training_is(choices, given):
  with pytest.raises(cli.UsageError, match='give either --train_steps or'):
    halving.make_rungs(2, 4, choices, given)
  assert halving.make_rungs(None, 4, choices, given) == [(4, '')]


def make_trials():
  """Four at the end of the first rung, but for one that has failed."""
  return [
    make_trial(1, trials.DONE, 0.5),
    make_trial(2, trials.DONE, 0.9),
    make_trial(3, trials.FAILED),
    make_trial(4, trials.DONE, 0.7),
  ]


RUNGS = halving.make_rungs(2, 4, {}, ['--train_steps=8'])


def numbers(found):
  return [trial.number for trial in found]


def test_a_rung_has_the_best_of_the_one_before():
  schedule = halving.Schedule(make_trials(), RUNGS)
  assert schedule.num_rungs == 3
  assert numbers(schedule.find_members(0)) == [1, 2, 3, 4]
  assert numbers(schedule.find_members(1)) == [2, 4]
  assert schedule.find_missing(0) == []
  assert numbers(schedule.find_next()) == [2, 4]
  assert schedule.count_ended(0) == 4
  assert schedule.count_ended(1) == 0


def test_what_has_failed_runs_again_only_if_asked():
  found = make_trials()
  assert numbers(
    halving.Schedule(found, RUNGS, is_failed_retried=True).find_next()
  ) == [3]
  found[2].state = trials.DIVERGED
  assert numbers(
    halving.Schedule(found, RUNGS, is_failed_retried=True).find_next()
  ) == [2, 4]


def test_a_combination_goes_on_with_all_its_seeds_by_their_mean():
  """The first has the best seed, the second the better mean."""
  found = make_repeats((0.95, 0.1), (0.7, 0.8), (0.6, 0.5), (0.4, 0.3))
  schedule = halving.Schedule(found, RUNGS, repeats=2)
  assert schedule.num_trials == 8 and schedule.num_unknown == 0
  assert numbers(schedule.find_members(1)) == [3, 4, 5, 6]
  # The first seed of each before the second of any.
  assert numbers(schedule.find_missing(1)) == [3, 5, 4, 6]
  assert numbers(schedule.choose_dropped(0)) == [1, 2, 7, 8]


def test_without_a_seed_that_failed_a_combination_goes_on():
  found = make_repeats((0.9, None), (0.8, 0.8), (0.7, 0.7), (0.6, 0.6))
  found[1].state = trials.FAILED
  schedule = halving.Schedule(found, RUNGS, repeats=2)
  assert numbers(schedule.find_members(1)) == [1, 3, 4]
  found[1].state = trials.DIVERGED
  assert numbers(schedule.find_members(1)) == [3, 4, 5, 6]


def test_the_worst_are_dropped():
  schedule = halving.Schedule(make_trials(), RUNGS)
  assert numbers(schedule.choose_dropped(0)) == [1]


def test_what_has_run_to_the_end_is_dropped_no_more():
  found = [
    make_trial(1, trials.DONE, 0.5, 0.5),
    make_trial(2, trials.DONE, 0.9),
    make_trial(3, trials.DONE, 0.7),
  ]
  # The first had been the best before the second was retried.
  schedule = halving.Schedule(found, [(3, ''), (1, '')])
  assert numbers(schedule.choose_dropped(0)) == [3]
  assert [trial.is_over(2) for trial in found] == [True, False, False]


def test_nothing_is_next_when_all_have_ended():
  found = [make_trial(1, trials.DONE, 0.5)]
  assert halving.Schedule(found, [(1, '')]).find_next() == []
