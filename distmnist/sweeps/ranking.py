"""Which trials are best.

Trials are ranked by validation accuracy, or whatever metric judges the problem,
if every trial that ended has it, else by that metric in the test; with
--judge=images_per_sec by their speed; under halving, a trial that got further
is better.
"""

from distmnist.sweeps import results
from distmnist.sweeps import trials as trials_lib


def find_ranking(trials):
  """Returns what trials are compared by, such as 'test_accuracy' (str)."""
  by, _ = _find_metric(trials)
  return by


def find_columns(trials):
  """Returns the keys (list of str) that a table has of each result."""
  by = find_ranking(trials)
  if by == results.SPEED:
    tests = {key for t in trials for key in t.result if key[:5] == 'test_'}
    return [by, *sorted(tests)]
  _, _, metric = by.partition('_')
  columns = [f'validation_{metric}', f'test_{metric}']
  return columns if by in columns else [by]


def _find_metric(trials):
  return results.read_metric([t.result for t in trials if t.results])


def rank(trials):
  """Returns the trials, best first, then those without a result."""
  by, sign = _find_metric(trials)

  def key(trial):
    if trial.state in trials_lib.LOST:
      return 2 + trials_lib.LOST.index(trial.state), 0, 0, trial.number
    if not trial.results:
      return 1, 0, 0, trial.number
    return 0, -len(trial.results), -sign * trial.result[by], trial.number

  return sorted(trials, key=key)


def choose(trials, rung, number):
  """Returns the best `number` of the trials that finished `rung` (int)."""
  ended = [trial for trial in trials if len(trial.results) > rung]
  by, sign = results.read_metric([trial.results[rung] for trial in ended])
  ended.sort(key=lambda trial: -sign * trial.results[rung][by])
  return ended[:number]
