"""What a sweep is asked to try: the flags that tell it from other sweeps."""

from __future__ import annotations

import dataclasses
import functools
import hashlib

from distmnist.common import cli, command_line, stop_grace
from distmnist.common.names import TRAIN
from distmnist.launching import jobs, problem_file, train_flags
from distmnist.sweeps import halving, results, search_space

# The sweep sets these itself, or they would leave nothing to compare.
_OURS = (
  *jobs.CLUSTER_FLAGS,
  'logdir',
  'resume',
  'download_only',
  'help',
  'helpfull',
)


@dataclasses.dataclass(frozen=True)
class Spec:
  """A sweep as its journal holds it; JSON can represent each field.

  Attributes:
    words: what to try, for search_space.parse.
    flags: those of all trials, with each --flagfile read.
    num_ps, num_workers: the cluster of each trial.
    module: dotted name, what a trial runs.
    zip, random, sampler, halving, judge, repeats: the sweep's flags.
  """

  words: list[str]
  flags: list[str]
  num_ps: int
  num_workers: int
  module: str
  zip: bool = False
  random: int | None = None
  sampler: str = 'random'
  halving: int | None = None
  judge: str = results.METRIC
  repeats: int = 1

  @functools.cached_property
  def choices(self) -> dict[str, search_space.Choice]:
    """What each flag may be; raises cli.UsageError if a word is malformed."""
    return search_space.parse(self.words)

  @property
  def is_proposed(self) -> bool:
    """Whether Optuna chooses each trial from those before it."""
    return self.sampler == 'tpe'

  @functools.cached_property
  def combinations(self) -> list[dict[str, str]]:
    """One {flag: value} per trial; empty if the trials are proposed.

    Raises:
      cli.UsageError: the values cannot be combined that way.
    """
    if self.is_proposed:
      return []
    seed = self.first_seed if self.random else None
    return search_space.make_combinations(
      self.choices, self.zip, self.random, seed
    )

  @property
  def num_combinations(self) -> int:
    """How many the whole sweep has."""
    if self.is_proposed and self.random:
      return self.random  # The flags of sweep see to it.
    return len(self.combinations)

  @property
  def num_trials(self) -> int:
    return self.num_combinations * self.repeats

  @property
  def first_seed(self) -> int:
    """That of the first trial of each combination, and of --random.

    Raises:
      cli.UsageError: the flag for it is not a whole number.
    """
    text = command_line.find_value(self.flags, 'seed') or '0'
    if not text.isdecimal():
      raise cli.UsageError(f'--seed={text}: expected a whole number from 0 on')
    return int(text)

  @property
  def seeds(self) -> list[int | None]:
    """One for each trial of a combination; None leaves it to their flags."""
    if self.repeats == 1:
      return [None]
    return list(range(self.first_seed, self.first_seed + self.repeats))

  @functools.cached_property
  def rungs(self) -> list[tuple[int, str]]:
    """See halving.make_rungs; without --halving there is one."""
    return halving.make_rungs(
      self.halving, self.num_combinations, self.choices, self.flags
    )

  @property
  def is_cluster(self) -> bool:
    return self.num_ps + self.num_workers > 1

  @property
  def problem(self) -> str | None:
    """What --problem names; None for images."""
    return command_line.find_value(self.flags, 'problem')

  @functools.cached_property
  def problem_sha256(self) -> str | None:
    """Of the problem's file; None if there is none to be sent to the tasks."""
    source = problem_file.read(self.problem)
    return hashlib.sha256(source).hexdigest() if source is not None else None

  @property
  def stop_grace_secs(self) -> float:
    """How long a trial that is told to stop may take.

    Raises:
      cli.UsageError: the flag for it is not a valid number of seconds.
    """
    return stop_grace.parse(self.flags)

  def check_words(self) -> None:
    """Checks that the words can be combined, and are for a trial.

    Raises:
      cli.UsageError: they cannot, or one names what the sweep gives itself.
    """
    if 'problem' in self.choices:
      raise cli.UsageError(
        '--problem is not for a trial: trials of different problems are judged '
        'by metrics that cannot be compared'
      )
    if 'best' in self.choices:
      raise cli.UsageError(
        '--best is not for a trial: trials that are judged by different metrics'
        ' cannot be compared; after the -- it names the metric of all'
      )
    if 'seed' in self.choices:
      raise cli.UsageError(
        '--seed is not searched, as no seed is better than another: --repeats=3'
        ' tries each combination with three of them, from --seed after the --'
        ' on, and compares the means'
      )
    for name in _OURS:
      if (
        name in self.choices
        or command_line.find_value(self.flags, name) is not None
      ):
        raise cli.UsageError(
          f'--{name} is not for a trial: the sweep gives each a logdir of its '
          'own and resumes it, and --num_ps and --num_workers before the -- '
          'give it a cluster'
        )
    _ = self.rungs  # It raises if there can be none.

  def check_flags(self) -> None:
    """Checks each flag of the trials by itself, before anything starts.

    Raises:
      cli.UsageError: one is wrong.
    """
    if self.module != TRAIN:
      return
    train_flags.check(self.flags)
    # The problem may have flags of its own.
    problem = [f'--problem={self.problem}'] if self.problem else []
    examples = map(search_space.to_flags, self.find_examples())
    for word in sorted({word for words in examples for word in words}):
      train_flags.check([*problem, word])

  def find_examples(self) -> list[dict[str, str]]:
    """The combinations, or if proposed, some that cover each value and end."""
    if not self.is_proposed:
      return self.combinations
    return search_space.make_ends(self.choices)
