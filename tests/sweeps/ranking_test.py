"""Which trials are best, in all and in a rung."""

from distmnist.sweeps import groups, ranking, trials
from tests.support.trials import make_repeats, make_trial


def names(found):
  return [trial.number for trial in found]


def rank(found):
  return names(ranking.rank(groups.by_combination(found)))


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
  assert rank(found) == [6, 5, 7, 4, 3, 2, 1]


def test_the_test_accuracy_decides_where_one_has_no_other():
  found = [
    make_trial(1, trials.DONE, 0.9, test=0.1),
    make_trial(2, trials.DONE, 0.8, test=0.2),
  ]
  assert rank(found) == [1, 2]
  found.append(make_trial(3, trials.DONE, None, test=0.15))
  assert rank(found) == [2, 3, 1]
  assert names(ranking.choose(found, 0, 2)) == [2, 3]


def test_of_a_loss_the_least_is_best():
  found = [make_trial(i, trials.DONE) for i in range(3)]
  for trial, value in zip(found, (0.5, 0.1, 0.3), strict=True):
    trial.results = [
      {'judged_by': '-mse', 'validation_mse': None, 'test_mse': value}
    ]
  assert rank(found) == [1, 2, 0]
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


def test_the_mean_over_the_seeds_ranks_a_combination():
  found = make_repeats((0.99, 0.5), (0.8, 0.8), (0.9, None), (0.7, 0.95))
  assert rank(found) == [5, 7, 3, 1]
  found[5].state = trials.FAILED  # The other seed is as good as it was.
  assert rank(found) == [5, 7, 3, 1]
  found[5].state = trials.DIVERGED  # It may diverge again.
  assert rank(found) == [7, 3, 1, 5]
  assert names(ranking.choose(found, 0, 2)) == [7, 8, 3, 4]


def test_what_the_seeds_do_not_tell_from_the_best_is_named():
  def find_rival(*accuracies):
    each = groups.by_combination(make_repeats(*accuracies))
    rival = ranking.find_rival(ranking.rank(each))
    return rival and rival.number

  # Deviations of 0.01 each: twice the standard error is 0.02.
  best = 0.90, 0.91, 0.89
  assert find_rival(best, (0.89, 0.88, 0.90)) == 4
  assert find_rival(best, (0.87, 0.88, 0.86)) is None
  # What a seed does to both tells nothing of them: each differs by 0.01.
  assert find_rival((0.90, 0.80, 0.70), (0.889, 0.79, 0.691)) is None
  assert find_rival((0.90, 0.80, 0.70), (0.87, 0.80, 0.70)) == 4
  # Where one of the seeds has failed, they are not the same.
  assert find_rival((0.90, 0.80, 0.70), (0.889, 0.79, None)) == 1
  assert find_rival((0.9, 0.8), (0.8, 0.9)) == 3  # As good.
  # One seed tells nothing, nor has the best a rival.
  assert find_rival((0.9,), (0.89,)) is None
  assert find_rival(best) is None


def test_the_best_is_no_rival_of_its_own():
  found = make_repeats((0.9, 0.8), (0.89, 0.79), (0.87, 0.80))
  for trial in found[:4]:
    trial.combination = {'rate': '1'}
  ranked = ranking.rank(groups.by_combination(found))
  assert ranking.find_rival(ranked).number == 5


def test_combinations_that_saw_fewer_examples_are_told_of():
  def find(*examples, name='rate'):
    found = make_repeats(*([0.9 - i / 10, 0.8] for i in range(len(examples))))
    for trial, seen in zip(found[::2], examples, strict=True):
      trial.result['examples'] = found[trial.number].result['examples'] = seen
    for trial in found:
      trial.combination = {name: trial.combination['rate']}
    ranked = ranking.rank(groups.by_combination(found))
    return ranking.find_unequal_examples(ranked)

  assert find(300_000, 30_000, 40_000) == (30_000, 300_000)
  assert find(100, 110) is None
  assert find(None, None) is None and find(100, None) is None
  # These are to differ.
  assert find(100, 200, name='train_steps') is None
  # What halving has dropped is not compared with the best.
  found = [
    make_trial(1, trials.DONE, 0.8, 0.9),
    make_trial(2, trials.DROPPED, 0.7),
  ]
  for trial, seen in zip(found, (200, 100), strict=True):
    trial.result['examples'] = seen
  ranked = ranking.rank(groups.by_combination(found))
  assert ranking.find_unequal_examples(ranked) is None
