"""Which trials are best.

Best is the best validation accuracy, or what else a problem is judged by, where
every trial that ended has one, else the best in the test; under halving, a
trial that came further is better.
"""

from distmnist.sweeps import results
from distmnist.sweeps import trials as trials_lib


def find_ranking(trials):
  """Returns the name of what trials are compared by, 'test_accuracy' or so."""
  by, _ = _find_metric(trials)
  return by


def _find_metric(trials):
  return results.read_metric([t.result for t in trials if t.results])


def rank(trials):
  """Returns the trials, the best first, then those without a result."""
  by, sign = _find_metric(trials)

  def key(trial):
    if trial.state in trials_lib.LOST:
      return 2 + trials_lib.LOST.index(trial.state), 0, 0, trial.number
    if not trial.results:
      return 1, 0, 0, trial.number
    return 0, -len(trial.results), -sign * trial.result[by], trial.number

  return sorted(trials, key=key)


def choose(trials, rung, number):
  """Returns the `number` best of the trials that have ended a rung, an int."""
  ended = [trial for trial in trials if len(trial.results) > rung]
  by, sign = results.read_metric([trial.results[rung] for trial in ended])
  ended.sort(key=lambda trial: -sign * trial.results[rung][by])
  return ended[:number]
