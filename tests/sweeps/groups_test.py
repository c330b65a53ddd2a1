"""The trials of a combination, together."""

import pytest

from distmnist.sweeps import groups, trials
from tests.support.trials import make_repeats, make_trial


def test_the_trials_of_a_combination_are_one():
  found = make_repeats((0.9, 0.7), (0.6, 0.5))
  first, second = groups.by_combination(found)
  assert (first.name, second.name) == ('01-02', '03-04')
  assert first.flags == {'rate': '0.1'}
  assert first.mean('validation_accuracy') == pytest.approx(0.8)
  # sqrt((0.1^2 + 0.1^2) / (2 - 1))
  assert first.deviation('validation_accuracy') == pytest.approx(0.02**0.5)
  assert [group.name for group in groups.by_trial(found)] == [
    *('01', '02', '03', '04')
  ]


def test_one_that_was_proposed_twice_is_two():
  found = make_repeats((0.9, 0.7), (0.6, 0.5))
  for trial in found:
    trial.combination = {'rate': '1'}
  assert len(groups.by_combination(found)) == 2


def test_what_has_failed_or_is_behind_counts_nothing():
  found = make_repeats((0.9, 0.7, 0.1, None))
  found[1].state = trials.FAILED
  found[0].results.append({'test_accuracy': 0.95})  # A further rung.
  (group,) = groups.by_combination(found)
  assert (group.depth, group.results) == (2, [{'test_accuracy': 0.95}])
  assert group.state == '2 done, 1 failed, 1 waiting'
  assert group.mean('test_accuracy') == 0.95
  assert group.deviation('test_accuracy') is None
  assert group.mean('global_step') is None


def test_of_none_there_is_nothing():
  (group,) = groups.by_trial([make_trial(1, trials.WAITING)])
  assert (group.depth, group.results) == (0, [])
  assert group.mean('test_accuracy') is None
