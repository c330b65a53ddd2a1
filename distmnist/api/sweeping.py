"""A sweep as a call: many trainings, and which one is best."""

from __future__ import annotations

import csv
import os
import tempfile
import types
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from distmnist.api import process
from distmnist.sweeps import trials

_TEXTS = 'trial', 'trials', 'state', 'cause'
# With one of the first a sweep ends with 1; with one of the second it goes on.
_INCOMPLETE = {trials.FAILED, trials.STOPPED}
_OPEN = {trials.WAITING, trials.RUNNING}


class SweepReport(list):
  """The combinations of a sweep, best first, each a dict.

  It is like a row of results.csv: the name of its trial, the value of each flag
  that was tried, its metrics, staleness, MB, examples_per_sec, updates,
  examples, secs, state and cause; with repeats=3 their means over three seeds,
  the deviations of the metrics, such as validation_std, and n. Failed ones come
  last.

  Attributes:
    trials: one for each trial, like a row of trials.csv, with its seed; without
      repeats the combinations.
  """

  def __init__(
    self,
    rows: Iterable[dict[str, Any]],
    trials: Iterable[dict[str, Any]] = (),
  ) -> None:
    super().__init__(rows)
    self.trials = list(trials) or list(self)

  @property
  def best(self) -> dict[str, Any]:
    """The best trial.

    Raises:
      ValueError: none has a result, or of each combination a seed has diverged.
    """
    # A trial that was stopped has one if an earlier rung of halving has ended.
    if not self or not (
      self[0]['state'] in (trials.DONE, trials.DROPPED)
      or self[0].get('updates')
    ):
      raise ValueError('no trial of the sweep has a result')
    if trials.DIVERGED in self[0]['state']:  # '2 done, 1 diverged'
      raise ValueError('of each combination of the sweep a seed has diverged')
    return self[0]


def run_sweep(
  choices: Mapping[str, Iterable | str],
  problem: str | os.PathLike | types.ModuleType | None = None,
  on_line: Callable[[str], object] | None = None,
  sweep_dir: str | os.PathLike | None = None,
  **settings: Any,
) -> SweepReport:
  """Trains with many combinations of flags.

    report = distmnist.run_sweep(
      {'learning_rate': [0.1, 0.01], 'units': [32, 64]}, 'mine.py', epochs=2
    )
    print(report.best['learning_rate'])

  Args:
    choices: the values of each flag, by its name, or a range as text, such as
      '1e-4..1' for random=N.
    problem: see training.run.
    on_line: called with each line that the sweep prints. By default it is
      printed.
    sweep_dir: the folder of the trials, from which the same call resumes; None
      for one on this machine that is removed at the end.
    **settings: flags of sweep (repeats, parallel, random, halving, zip, runner,
      ...), of launch (num_ps, num_workers, launcher, ...) and of train, which
      all trials get.

  Raises:
    process.Error: a wrong setting, or the sweep itself failed or was stopped.
      Trials that fail are in the report.
    ValueError: a launcher or runner for other hosts without a sweep_dir, or
      choices that are not lists.
    KeyboardInterrupt: passed on once the trials are stopped.
  """
  _check_choices(choices)
  words = [_make_word(name, values) for name, values in choices.items()]
  words += process.make_words(problem, settings)
  given = process.read_flags(words)
  sweep_dir = sweep_dir or given.get('sweep_dir')
  process.check_is_shared(given, sweep_dir, 'sweep_dir')
  folder = None
  if not sweep_dir:
    folder = tempfile.TemporaryDirectory(prefix='distmnist_run_')
    sweep_dir = os.path.join(folder.name, 'sweep')
  sweep_dir = os.path.expanduser(sweep_dir)
  words.append(f'--sweep_dir={sweep_dir}')

  def read(code: int) -> SweepReport | None:
    return read_report(sweep_dir, choices, code)

  take = on_line or process.without_error(print)
  with process.Process('sweep', words, take, read, folder) as running:
    return running.result()


def _check_choices(choices: object) -> None:
  if not isinstance(choices, Mapping):
    raise ValueError(
      f'choices={choices!r}: expected the values of each flag, such as '
      "{'learning_rate': [0.1, 0.01]}"
    )
  for name, values in choices.items():
    if not isinstance(values, (str, Iterable)):
      raise ValueError(
        f'choices[{name!r}]={values!r}: expected a list of values, such as '
        f'[{values!r}], or a range as text'
      )


def _make_word(name: str, values: Iterable | str) -> str:
  if isinstance(values, str):
    return f'{name}={values}'
  texts = [*map(_format, values)]
  # If any value contains commas, semicolons separate the values.
  if not any(',' in text for text in texts):
    return f'{name}={",".join(texts)}'
  return f'{name}={";".join(texts)}{";" if len(texts) == 1 else ""}'


def _format(value: object) -> str:
  return ','.join(
    map(str, value if isinstance(value, (list, tuple)) else [value])
  )


def read_report(
  sweep_dir: str, choices: Mapping[str, Iterable | str], code: int
) -> SweepReport | None:
  """Returns the trials of a sweep that has ended; None if it failed itself."""
  if code not in (0, 1):
    return None
  rows = _read_rows(os.path.join(sweep_dir, 'results.csv'), choices)
  each = _read_rows(os.path.join(sweep_dir, 'trials.csv'), choices)
  report = SweepReport(rows, each)
  # With 1 a trial has failed, or the sweep itself, as where the disk is full.
  states = {row['state'] for row in report.trials}
  is_over = states & _INCOMPLETE and not states & _OPEN
  return report if rows and (code == 0 or is_over) else None


def _read_rows(
  path: str, choices: Mapping[str, Iterable | str]
) -> list[dict[str, Any]]:
  """Returns the rows of a file; none if it does not exist."""
  if not os.path.exists(path):
    return []
  with open(path, encoding='utf-8', newline='') as file:
    return [_read_row(row, choices) for row in csv.DictReader(file)]


def _read_row(
  row: Mapping[str, str], choices: Mapping[str, Iterable | str]
) -> dict[str, Any]:
  """Returns a row of results.csv with the values that were tried, as given."""
  found = {}
  for name, text in row.items():
    tried = choices.get(name, ())
    given = {} if isinstance(tried, str) else {_format(v): v for v in tried}
    parsed = (text or None) if name in _TEXTS else _parse(text)
    found[name] = given.get(text, parsed)
  return found


def _parse(text: str) -> int | float | str | None:
  """Returns a text, as a number if it is one; None for ''."""
  for kind in (int, float):
    try:
      return kind(text)
    except ValueError:
      pass
  return text or None
