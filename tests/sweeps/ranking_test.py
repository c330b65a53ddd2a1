"""Which trials are best, in all and in a rung."""

from distmnist.sweeps import ranking, trials
from tests.support.trials import make_trial


def names(found):
  return [trial.number for trial in found]


def test_the_best_is_first_and_the_diverged_last():
  found = [
    make_trial(1, trials.DIVERGED, 0.99),
    make_trial(2, trials.FAILED),
    make_trial(3, trials.STOPPED),
    make_trial(4, trials.DONE, 0.7),
    make_trial(5, trials.DROPPED, 0.95),
    make_trial(6, trials.DONE, 0.6, 0.8),
    make_trial(7, trials.DONE, 0.8),
  ]
  # Trial 6 has come further than all others.
  assert names(ranking.rank(found)) == [6, 5, 7, 4, 3, 2, 1]


def test_the_test_accuracy_decides_where_one_has_no_other():
  found = [
    make_trial(1, trials.DONE, 0.9, test=0.1),
    make_trial(2, trials.DONE, 0.8, test=0.2),
  ]
  assert names(ranking.rank(found)) == [1, 2]
  found.append(make_trial(3, trials.DONE, None, test=0.15))
  assert names(ranking.rank(found)) == [2, 3, 1]
  assert names(ranking.choose(found, 0, 2)) == [2, 3]


def test_of_a_loss_the_least_is_best():
  found = [make_trial(i, trials.DONE) for i in range(3)]
  for trial, value in zip(found, (0.5, 0.1, 0.3), strict=True):
    trial.results = [
      {'judged_by': '-mse', 'validation_mse': None, 'test_mse': value}
    ]
  assert names(ranking.rank(found)) == [1, 2, 0]
  assert names(ranking.choose(found, 0, 2)) == [1, 2]
  assert ranking.find_ranking(found) == 'test_mse'


def test_a_rung_chooses_by_its_own_results_and_the_first_of_equals():
  found = [
    make_trial(1, trials.DROPPED, 0.5),
    make_trial(2, trials.DONE, 0.7, 0.1),
    make_trial(3, trials.DIVERGED, 0.9),
    make_trial(4, trials.FAILED),
    make_trial(5, trials.DONE, 0.7),
  ]
  assert names(ranking.choose(found, 0, 3)) == [3, 2, 5]
  assert names(ranking.choose(found, 1, 3)) == [2]
