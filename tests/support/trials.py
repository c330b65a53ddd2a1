"""Trials with results, without any training."""

from distmnist.sweeps import trials


def make_trial(number, state, *validation, test=0.5, **combination):
  values = [
    {
      'validation_accuracy': v,
      'test_accuracy': test,
      'final_loss': 0.25,
      'global_step': 100 * (rung + 1),
    }
    for rung, v in enumerate(validation)
  ]
  combination = combination or {'learning_rate': '0.1', 'strategy': 'ssp'}
  return trials.Trial(
    number, f'{number:02}', combination, 'x', state, 1.25, '', values
  )


def make_repeats(*accuracies, **settings):
  """Returns a trial for each seed of each combination.

  Args:
    accuracies: for each combination a tuple of those of its seeds; None for a
      trial without a result.
    settings: of the first result of each, besides.
  """
  found = []
  for place, of_seeds in enumerate(accuracies):
    for seed, accuracy in enumerate(of_seeds):
      values = [] if accuracy is None else [accuracy]
      state = trials.DONE if values else trials.WAITING
      trial = make_trial(len(found) + 1, state, *values, rate=f'0.{place + 1}')
      trial.repeat = trial.seed = seed
      for result in trial.results:
        result.update(settings)
      found.append(trial)
  return found


def make_three_trials():
  """Returns two that are done and one that has failed."""
  lost = make_trial(2, trials.FAILED, learning_rate='0.01', strategy='easgd')
  lost.cause = 'a cause, "quoted", ' + 60 * 'x'
  return [
    make_trial(1, trials.DONE, 0.9, learning_rate='0.1', strategy='easgd'),
    lost,
    make_trial(3, trials.DONE, 0.95, learning_rate='1', strategy='ssp'),
  ]
