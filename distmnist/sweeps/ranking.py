"""Which combinations are best.

They are ranked by validation accuracy, or whatever metric judges the problem,
if every trial that ended has it, else by that metric in the test; with
--judge=examples_per_sec by their speed; under halving, one that got further is
better. With --repeats the mean over the seeds counts: of a seed that failed,
the others are as good, but with one that diverges a combination is lost.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence

from distmnist.sweeps import groups as groups_lib
from distmnist.sweeps import results
from distmnist.sweeps import trials as trials_lib

_LENGTHS = {'epochs', 'train_steps', 'train_secs'}


def find_ranking(trials: Iterable[trials_lib.Trial]) -> str:
  """Returns what trials are compared by, such as 'test_accuracy'."""
  by, _ = _find_metric(trials)
  return by


def find_columns(trials: Sequence[trials_lib.Trial]) -> list[str]:
  """Returns the keys that a table has of each result."""
  by = find_ranking(trials)
  if by == results.SPEED:
    tests = {key for t in trials for key in t.result if key[:5] == 'test_'}
    return [by, *sorted(tests)]
  _, _, metric = by.partition('_')
  columns = [f'validation_{metric}', f'test_{metric}']
  return columns if by in columns else [by]


def _find_metric(trials: Iterable[trials_lib.Trial]) -> tuple[str, int]:
  return results.read_metric([t.result for t in trials if t.results])


def rank(groups: Iterable[groups_lib.Group]) -> list[groups_lib.Group]:
  """Returns the groups, best first, then those without a result."""
  groups = list(groups)
  by, sign = _find_metric([trial for group in groups for trial in group.trials])

  def key(group: groups_lib.Group) -> tuple[int, int, float, int]:
    if trials_lib.DIVERGED in group.states:
      return 3, 0, 0, group.number
    mean = group.mean(by)
    if mean is None:
      return 1 + (trials_lib.FAILED in group.states), 0, 0, group.number
    return 0, -group.depth, -sign * mean, group.number

  return sorted(groups, key=key)


def choose(
  trials: Sequence[trials_lib.Trial], rung: int, number: int
) -> list[trials_lib.Trial]:
  """Returns the trials of the best `number` combinations of a rung.

  Args:
    trials: of the sweep.
    rung: those that have not finished it are not chosen, nor is a
      combination of which a seed has diverged in it.
    number: of combinations.
  """
  ended = [trial for trial in trials if len(trial.results) > rung]
  by, sign = results.read_metric([trial.results[rung] for trial in ended])
  found = []
  for group in groups_lib.by_combination(trials):
    done = [trial for trial in group.trials if len(trial.results) > rung]
    rest = [trial for trial in group.trials if len(trial.results) <= rung]
    if done and all(trial.state != trials_lib.DIVERGED for trial in rest):
      mean = statistics.fmean(trial.results[rung][by] for trial in done)
      found.append((-sign * mean, done))
  found.sort(key=lambda pair: pair[0])
  return [trial for _, done in found[:number] for trial in done]


def find_rival(ranked: Sequence[groups_lib.Group]) -> groups_lib.Group | None:
  """Returns the second best, if the seeds do not tell it from the best.

  They do where the means differ by at least twice the standard error of their
  difference: where both have the same seeds, s / sqrt(n) of the differences of
  each seed, as what a seed does to both is in neither; otherwise
  sqrt(s1^2 / n1 + s2^2 / n2). None if they do, or if one of the two has less
  than two results.

  Args:
    ranked: from `rank`.
  """
  best = ranked[0]
  # TPE may have proposed the best again.
  second = next((g for g in ranked if g.flags != best.flags), None)
  if second is None:
    return None
  by = find_ranking([trial for group in ranked for trial in group.trials])
  values = [best.find_values(by), second.find_values(by)]
  if best.depth != second.depth or min(map(len, values)) < 2:
    return None
  if trials_lib.DIVERGED in [*best.states, *second.states]:
    return None
  mine, other = map(statistics.fmean, values)
  if _find_seeds(best, by) == _find_seeds(second, by):
    values = [[a - b for a, b in zip(*values, strict=True)]]
  error = math.hypot(*(statistics.stdev(x) / math.sqrt(len(x)) for x in values))
  difference = abs(mine - other)
  return second if difference < 2 * error or not difference else None


def _find_seeds(group: groups_lib.Group, by: str) -> list[int | None]:
  """Returns the seed of each of its `find_values`."""
  return [t.seed for t in group.counted if t.result.get(by) is not None]


def find_unequal_examples(
  ranked: Sequence[groups_lib.Group],
) -> tuple[float, float] | None:
  """Returns the fewest and the most examples that combinations have seen.

  None where these are within 10 % of each other, where speeds are compared,
  and where the length of a training is itself searched.

  Args:
    ranked: from `rank`; those that have got as far as the best are compared.
  """
  by = find_ranking([trial for group in ranked for trial in group.trials])
  if by == results.SPEED or _LENGTHS & set(ranked[0].flags):
    return None
  compared = [group for group in ranked if group.depth == ranked[0].depth]
  means = [group.mean('examples') for group in compared]
  seen = [mean for mean in means if mean is not None]
  if not seen or max(seen) <= 1.1 * min(seen):
    return None
  return min(seen), max(seen)
