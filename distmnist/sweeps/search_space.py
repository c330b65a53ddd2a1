"""Turns words like learning_rate=0.1,0.01 into the combinations of a sweep.

A word names a flag of train and says which values it may have:

  name=v1,v2,...   these values
  name=v1;v2;...   the same, for values that contain commas; name=v1; has one
  name=lo..hi      a range to sample from: whole numbers evenly if both ends
                   are whole, else numbers evenly in their logarithm
  name=log:lo..hi  evenly in the logarithm, even for whole numbers
  name=lin:lo..hi  evenly

A combination is a dict, name -> value, both str. Pure: no flag is read here.
"""

from __future__ import annotations

import itertools
import math
import random
import re
import types
from collections.abc import Iterable, Mapping
from typing import Any

from distmnist.common import cli

_NUMBER = r'[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?'
_RANGE = re.compile(rf'(?:(log|lin):)?({_NUMBER})\.\.({_NUMBER})')
# Meant as a range: neither a list nor a path.
_TWO_ENDS = re.compile(r'[^/,;]+\.\.[^/,;]+')
_TRIES = 100  # draws per combination, which has to be new


class Values:
  """A list to choose from."""

  def __init__(self, values: list[str]) -> None:
    self.values = self.ends = values

  def draw(self, source: random.Random) -> str:
    """Returns one of the values, drawn from `source`."""
    return source.choice(self.values)

  def holds(self, value: object) -> bool:
    """Whether a value of any type is one of these."""
    return value in self.values

  def make_distribution(self, optuna: types.ModuleType) -> Any:
    """Returns the choice as a distribution of the module `optuna`."""
    return optuna.distributions.CategoricalDistribution(self.values)

  def parse(self, value: str) -> str:
    """Returns a value as Optuna represents it."""
    return value

  def format(self, number: str) -> str:
    """Returns the value for what Optuna has chosen."""
    return number


class Range:
  """A range of numbers to draw from."""

  def __init__(
    self, low: float, high: float, is_log: bool, is_whole: bool
  ) -> None:
    self._low = low
    self._high = high
    self._is_log = is_log
    self._is_whole = is_whole
    self.ends = [str(low), str(high)]

  def draw(self, source: random.Random) -> str:
    """Returns a number drawn from `source`, as `format` writes it."""
    low, high = self._low, self._high
    if self._is_whole:
      # Each whole number gets the interval around it.
      low, high = low - 0.5, high + 0.5
    if self._is_log:
      number = math.exp(source.uniform(math.log(low), math.log(high)))
    else:
      number = source.uniform(low, high)
    return self.format(number)

  def format(self, number: float) -> str:
    """Returns a number as a str, whole or of 4 digits, within the range."""
    number = round(number) if self._is_whole else float(f'{number:.4g}')
    return str(min(max(number, self._low), self._high))

  def parse(self, value: str) -> float:
    """Returns the number that a value stands for."""
    return int(value) if self._is_whole else float(value)

  def holds(self, value: object) -> bool:
    """Whether a value of any type is a number of the range, as a str."""
    try:
      return isinstance(value, str) and (
        self._low <= self.parse(value) <= self._high
      )
    except ValueError:
      return False

  def make_distribution(self, optuna: types.ModuleType) -> Any:
    """Returns the range as a distribution of the module `optuna`."""
    kinds = optuna.distributions
    kind = kinds.IntDistribution if self._is_whole else kinds.FloatDistribution
    return kind(self._low, self._high, log=self._is_log)


Choice = Values | Range


def parse(words: Iterable[str]) -> dict[str, Choice]:
  """Returns what each flag may be, by its name.

  Raises:
    cli.UsageError: a word is malformed.
  """
  if not words:
    raise cli.UsageError(
      'nothing to try: give at least one flag of train with its values, such '
      'as learning_rate=0.1,0.01'
    )
  found: dict[str, Choice] = {}
  for word in words:
    name, equals, text = word.partition('=')
    if not (equals and name.isidentifier() and text):
      raise cli.UsageError(
        f'{word!r}: expected the name of a flag and its values, such as '
        'learning_rate=0.1,0.01'
      )
    if name in found:
      raise cli.UsageError(f'{word!r}: {name} is given twice')
    found[name] = _parse_values(word, text)
  return found


def _parse_values(word: str, text: str) -> Choice:
  match = _RANGE.fullmatch(text)
  # 1e999 is infinite.
  if match and all(math.isfinite(float(end)) for end in match.groups()[1:]):
    return _make_range(word, match)
  if match or _TWO_ENDS.fullmatch(text):
    raise cli.UsageError(
      f'{word!r}: a range is two finite numbers, such as 1e-4..1; a single'
      f' value with .. in it ends in a semicolon: {text};'
    )
  return _make_list(word, text)


def _make_list(word: str, text: str) -> Values:
  has_commas = ';' in text
  values = text.removesuffix(';').split(';' if has_commas else ',')
  if len(set(values)) < len(values):
    raise cli.UsageError(f'{word!r}: a value is given twice')
  if '' in values:
    raise cli.UsageError(f'{word!r}: a value is empty')
  return Values(values)


def _make_range(word: str, match: re.Match[str]) -> Range:
  kind, *ends = match.groups()
  is_whole = all(re.fullmatch(r'[-+]?\d+', end) for end in ends)
  low, high = (int(end) if is_whole else float(end) for end in ends)
  is_log = kind == 'log' or (kind is None and not is_whole)
  if not low < high:
    raise cli.UsageError(f'{word!r}: {low:g} is not below {high:g}')
  if is_log and low <= 0:
    raise cli.UsageError(
      f'{word!r} is sampled evenly by the logarithm, which needs ends above 0:'
      f' write lin:{low:g}..{high:g} to sample evenly'
    )
  return Range(low, high, is_log, is_whole)


def make_combinations(
  choices: Mapping[str, Choice],
  is_zip: bool,
  num_random: int | None,
  seed: int | None,
) -> list[dict[str, str]]:
  """Returns combinations: all, or zipped, or `num_random` sampled with `seed`.

  Raises:
    cli.UsageError: the values cannot be combined that way.
  """
  if num_random is None:
    return make_zip(choices) if is_zip else make_product(choices)
  if is_zip:
    raise cli.UsageError('--zip and --random exclude each other')
  return make_random(choices, num_random, seed)


def make_product(choices: Mapping[str, Choice]) -> list[dict[str, str]]:
  """Combines all values, varying the last name fastest."""
  values = _list_values(choices)
  return _combine(choices, itertools.product(*values.values()))


def make_zip(choices: Mapping[str, Choice]) -> list[dict[str, str]]:
  """Combines the first value of each name, then the second, and so on."""
  values = _list_values(choices)
  lengths = {name: len(listed) for name, listed in values.items()}
  if len(set(lengths.values())) > 1:
    counts = ', '.join(f'{name} has {n}' for name, n in lengths.items())
    raise cli.UsageError(
      f'--zip needs the same number of values for each: {counts}'
    )
  return _combine(choices, zip(*values.values(), strict=True))


def make_random(
  choices: Mapping[str, Choice], number: int, seed: int | None
) -> list[dict[str, str]]:
  """Returns `number` distinct combinations, sampled with `seed`."""
  source = random.Random(seed)
  found: list[dict[str, str]] = []
  for _ in range(_TRIES * number):
    drawn = {name: choice.draw(source) for name, choice in choices.items()}
    if drawn not in found:
      found.append(drawn)
    if len(found) == number:
      return found
  raise cli.UsageError(
    f'--random={number}: only {len(found)} distinct combinations were found '
    'among these values: ask for fewer'
  )


def make_ends(choices: Mapping[str, Choice]) -> list[dict[str, str]]:
  """Returns combinations that cover each value, and each end of a range."""
  number = max(len(choice.ends) for choice in choices.values())
  return [
    {n: choice.ends[i % len(choice.ends)] for n, choice in choices.items()}
    for i in range(number)
  ]


def _list_values(choices: Mapping[str, Choice]) -> dict[str, list[str]]:
  """Returns {name: values}; raises cli.UsageError if one is a range."""
  found = {}
  for name, choice in choices.items():
    if isinstance(choice, Range):
      raise cli.UsageError(
        f'{name} is a range to sample from: give the number of samples, such '
        'as --random=20, or list its values'
      )
    found[name] = choice.values
  return found


def _combine(
  choices: Mapping[str, Choice], rows: Iterable[Iterable[str]]
) -> list[dict[str, str]]:
  return [dict(zip(choices, row, strict=True)) for row in rows]


def to_flags(combination: Mapping[str, str]) -> list[str]:
  """Returns the flags of a combination."""
  return [f'--{name}={value}' for name, value in combination.items()]


def describe(combination: Mapping[str, str]) -> str:
  """Returns 'learning_rate=0.1 batch_size=32', as a user would write it."""
  return ' '.join(f'{name}={value}' for name, value in combination.items())
