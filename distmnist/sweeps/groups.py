"""The trials of one combination, one for each seed, and what they come to."""

from __future__ import annotations

import dataclasses
import itertools
import statistics
from collections.abc import Iterable, Sequence
from typing import Any

from distmnist.sweeps import trials as trials_lib


@dataclasses.dataclass(frozen=True)
class Group:
  """One row of the results.

  Attributes:
    trials: at least one, by number.
    flags: {flag: value}, what tells it from other groups.
  """

  trials: list[trials_lib.Trial]
  flags: dict[str, str]

  @property
  def number(self) -> int:
    return self.trials[0].number

  @property
  def name(self) -> str:
    """Those of its trials: '04', or '04-06'."""
    names = [trial.name for trial in self.trials]
    return names[0] if len(names) == 1 else f'{names[0]}-{names[-1]}'

  @property
  def states(self) -> list[str]:
    return [trial.state for trial in self.trials]

  @property
  def state(self) -> str:
    """That of all of its trials, or how many have which: '2 done, 1 failed'."""
    states = self.states
    if len(set(states)) == 1:
      return states[0]
    return ', '.join(f'{states.count(s)} {s}' for s in dict.fromkeys(states))

  @property
  def cause(self) -> str:
    """Why the first of those that failed or diverged did."""
    return next((trial.cause for trial in self.trials if trial.cause), '')

  @property
  def depth(self) -> int:
    """How many rungs those of its trials have done that have done most."""
    return max((len(trial.results) for trial in self._find_live()), default=0)

  @property
  def counted(self) -> list[trials_lib.Trial]:
    """The trials that have got as far as any, and so are compared."""
    depth = self.depth
    return [t for t in self._find_live() if len(t.results) == depth > 0]

  @property
  def results(self) -> list[dict[str, Any]]:
    """The last result of each of those."""
    return [trial.result for trial in self.counted]

  def _find_live(self) -> list[trials_lib.Trial]:
    return [t for t in self.trials if t.state not in trials_lib.LOST]

  @property
  def secs(self) -> float:
    """How long a trial took, the mean of those that have run."""
    return mean_of([trial.secs for trial in self.trials if trial.secs]) or 0.0

  def find_values(self, key: str) -> list[float]:
    """Returns what its results have by a key; those without it are left out."""
    values = [result.get(key) for result in self.results]
    return [value for value in values if value is not None]

  def mean(self, key: str) -> float | None:
    return mean_of(self.find_values(key))

  def deviation(self, key: str) -> float | None:
    """The standard deviation over the seeds (by n - 1); None of less than 2."""
    return deviation_of(self.find_values(key))


def mean_of(values: Sequence[float]) -> float | None:
  """Returns the mean; None of no values."""
  return statistics.fmean(values) if values else None


def deviation_of(values: Sequence[float]) -> float | None:
  """Returns the sample's standard deviation; None of less than two values."""
  return statistics.stdev(values) if len(values) > 1 else None


def by_combination(trials: Iterable[trials_lib.Trial]) -> list[Group]:
  """Returns a Group for each combination of some trials, by number."""
  # Not by the flags: TPE may propose a combination again.
  each = itertools.groupby(trials, lambda trial: trial.number - trial.repeat)
  found = [list(members) for _, members in each]
  return [Group(members, members[0].combination) for members in found]


def by_trial(trials: Iterable[trials_lib.Trial]) -> list[Group]:
  """Returns a Group for each trial, told from others by its seed as well."""
  return [Group([trial], trial.flags) for trial in trials]
