"""Which trials are best.

Best is the highest validation accuracy where every trial that ended has one,
else the highest test accuracy; under halving, a trial that came further is
better.
"""

from distmnist.sweeps import trials as trials_lib


def find_ranking(trials):
  """Returns the name of the accuracy by which trials are compared, a str."""
  return _find_accuracy([trial.result for trial in trials if trial.results])


def _find_accuracy(results):
  if results and all(r['validation_accuracy'] is not None for r in results):
    return 'validation_accuracy'
  return 'test_accuracy'


def rank(trials):
  """Returns the trials, the best first, then those without a result."""
  by = find_ranking(trials)

  def key(trial):
    if trial.state in trials_lib.LOST:
      return 2 + trials_lib.LOST.index(trial.state), 0, 0, trial.number
    if not trial.results:
      return 1, 0, 0, trial.number
    return 0, -len(trial.results), -trial.result[by], trial.number

  return sorted(trials, key=key)


def choose(trials, rung, number):
  """Returns the `number` best of the trials that have ended a rung, an int."""
  ended = [trial for trial in trials if len(trial.results) > rung]
  by = _find_accuracy([trial.results[rung] for trial in ended])
  ended.sort(key=lambda trial: -trial.results[rung][by])
  return ended[:number]
