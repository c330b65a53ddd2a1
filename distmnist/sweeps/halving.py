"""Successive halving: many trials for a few steps, few for many.

Jamieson & Talwalkar 2016, arXiv 1502.07943. With n trials, a factor eta and the
budget B of a whole training, s = floor(log_eta(n)), rung k = 0..s has

  n_k = floor(n / eta^k) trials, each run until it has done B / eta^(s - k)

and the best n_(k+1) of them continue from where they are. So all rungs cost
about the same, and together at most (s + 1) / eta^s * n whole trainings. The
price of the bet: a trial that learns slowly at first is lost. With --repeats a
trial is a combination here: it goes on with all of its seeds, by their mean.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

from distmnist.common import cli, command_line
from distmnist.sweeps import ranking
from distmnist.sweeps import trials as trials_lib

# The flags that say how long a training is.
BUDGETS = ('train_steps', 'epochs')


def compute_rungs(
  num_trials: int, eta: int, name: str, budget: str
) -> list[tuple[int, str]]:
  """Returns (number of trials, flag of train) of each rung.

  Args:
    num_trials: >= 1.
    eta: >= 2.
    name: one of BUDGETS, a flag of train.
    budget: the value of that flag for a whole training.

  Raises:
    cli.UsageError: `budget` is not a number > 0, or the first rung has no step.
  """
  try:
    whole = int(budget) if name == 'train_steps' else float(budget)
  except ValueError:
    whole = 0
  if not 0 < whole < math.inf:
    raise cli.UsageError(f'--{name}={budget}: expected a number above 0')
  last = 0
  while eta ** (last + 1) <= num_trials:
    last += 1
  parts = [whole / eta ** (last - rung) for rung in range(last + 1)]
  if name == 'train_steps':
    if parts[0] < 1:
      raise cli.UsageError(
        f'--train_steps={whole} is too little for --halving={eta}: '
        f'{num_trials} trials make {last + 1} rungs, of which the first has '
        f'1 / {eta**last} of the steps'
      )
    parts = [round(part) for part in parts]
  return [
    (num_trials // eta**rung, f'--{name}={part:.10g}')
    for rung, part in enumerate(parts)
  ]


def make_rungs(
  eta: int | None,
  num_trials: int,
  choices: Collection[str],
  given: Sequence[str],
) -> list[tuple[int, str]]:
  """Returns (number of trials, flag for them) of each rung.

  Args:
    eta: >= 2; None for one rung with whole trainings.
    choices: the flags that are searched.
    given: the flags of all trials.

  Raises:
    cli.UsageError: it is not clear how long a whole training is.
  """
  if eta is None:
    return [(num_trials, '')]
  values = {name: command_line.find_value(given, name) for name in BUDGETS}
  budgets = [(name, text) for name, text in values.items() if text is not None]
  if len(budgets) != 1 or set(BUDGETS) & set(choices):
    raise cli.UsageError(
      '--halving shares out the length of a training: give either '
      '--train_steps or --epochs after the --, and do not sweep over them'
    )
  ((name, budget),) = budgets
  return compute_rungs(num_trials, eta, name, budget)


class Schedule:
  """Which trials each rung has, given their results so far.

  Attributes:
    trials: all of the sweep.
    num_rungs: 1 without --halving.
    repeats: trials of each combination, which go on together.
  """

  def __init__(
    self,
    trials: list[trials_lib.Trial],
    rungs: Sequence[tuple[int, str]],
    repeats: int = 1,
    is_failed_retried: bool = False,
  ) -> None:
    """
    Args:
      trials: grows while they are proposed.
      rungs: (number of combinations, flag) of each, from `make_rungs`.
      repeats: number of trials of each.
      is_failed_retried: whether failed trials are to run again.
    """
    self.trials = trials
    self.num_rungs = len(rungs)
    self.repeats = repeats
    self._sizes = [size for size, _ in rungs]
    self._is_failed_retried = is_failed_retried

  @property
  def num_trials(self) -> int:
    """How many there are to be in all."""
    return self._sizes[0] * self.repeats

  @property
  def num_unknown(self) -> int:
    """How many have yet to be proposed."""
    return self.num_trials - len(self.trials)

  def find_members(self, rung: int) -> list[trials_lib.Trial]:
    """Returns the trials that may reach the end of a rung."""
    members = self.trials
    for before in range(rung):
      members = ranking.choose(members, before, self._sizes[before + 1])
    return members

  def find_missing(self, rung: int) -> list[trials_lib.Trial]:
    """Returns the members that have yet to run to the end of a rung.

    The first seed of each combination comes before the second of any, so that a
    sweep that is stopped has something of each.
    """
    missing = [
      trial
      for trial in self.find_members(rung)
      if len(trial.results) <= rung
      and trial.state != trials_lib.DIVERGED
      and (trial.state != trials_lib.FAILED or self._is_failed_retried)
    ]
    return sorted(missing, key=lambda trial: trial.repeat)

  def find_next(self) -> list[trials_lib.Trial]:
    """Returns the trials to run now, from the first rung that has any."""
    each = map(self.find_missing, range(self.num_rungs))
    return next(filter(None, each), [])

  def count_ended(self, rung: int) -> int:
    """Returns how many members of a rung need not run in it any more."""
    return sum(
      len(trial.results) > rung or trial.state in trials_lib.LOST
      for trial in self.find_members(rung)
    )

  def choose_dropped(self, rung: int) -> list[trials_lib.Trial]:
    """Returns the members of `rung`, not the last, that do not go on."""
    best = self.find_members(rung + 1)
    return [
      trial
      for trial in self.find_members(rung)
      if trial not in best
      and trial.state == trials_lib.DONE
      and not trial.is_over(self.num_rungs)
    ]
