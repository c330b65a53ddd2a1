"""A sweep as a call: many trainings, and which one is best."""

import csv
import os
from collections.abc import Iterable, Mapping

from distmnist.api import process, training
from distmnist.sweeps import trials

_TEXTS = 'trial', 'state', 'cause'
# With one of the first a sweep ends with 1; with one of the second it goes on.
_INCOMPLETE = {trials.FAILED, trials.STOPPED}
_OPEN = {trials.WAITING, trials.RUNNING}


class SweepReport(list):
  """The trials of a sweep, best first, each a dict like a row of results.csv.

  A row has the trial's name, the value of each flag that was tried, its metrics
  (float), steps, secs, state and cause. Failed trials come last.
  """

  @property
  def best(self):
    """dict, the best trial.

    Raises:
      ValueError: none has a result.
    """
    # A trial that was stopped has one if an earlier rung of halving has ended.
    if not self or not (
      self[0]['state'] in (trials.DONE, trials.DROPPED) or self[0].get('steps')
    ):
      raise ValueError('no trial of the sweep has a result')
    return self[0]


def run_sweep(choices, problem=None, on_line=print, sweep_dir=None, **settings):
  """Trains with many combinations of flags.

    report = distmnist.run_sweep(
      {'learning_rate': [0.1, 0.01], 'units': [32, 64]}, 'mine.py', epochs=2
    )
    print(report.best['learning_rate'])

  Args:
    choices: {name of a flag: list of values, or a range as text, such as
      '1e-4..1' for random=N}.
    problem: see training.run.
    on_line: callable(line), called with each line that the sweep prints.
    sweep_dir: str, the folder of the trials, from which the same call resumes;
      None for one on this machine that is removed at the end.
    **settings: flags of sweep (parallel, random, halving, zip, runner, ...), of
      launch (num_ps, num_workers, launcher, ...) and of train, which all trials
      get.

  Returns:
    SweepReport.

  Raises:
    process.Error: a wrong setting, or the sweep itself failed or was stopped.
      Trials that fail are in the report.
    ValueError: a launcher or runner for other hosts without a sweep_dir, or
      choices that are not lists.
    KeyboardInterrupt: passed on once the trials are stopped.
  """
  _check_choices(choices)
  words = [_make_word(name, values) for name, values in choices.items()]
  words += training.make_words(problem, settings)
  given = training.read_flags(words)
  sweep_dir = sweep_dir or given.get('sweep_dir')
  training.check_is_shared(given, sweep_dir, 'sweep_dir')
  with _Sweep(words, on_line, sweep_dir, choices) as running:
    return running.result()


def _check_choices(choices):
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


def _make_word(name, values):
  if isinstance(values, str):
    return f'{name}={values}'
  texts = [*map(_format, values)]
  # If any value contains commas, semicolons separate the values.
  if not any(',' in text for text in texts):
    return f'{name}={",".join(texts)}'
  return f'{name}={";".join(texts)}{";" if len(texts) == 1 else ""}'


def _format(value):
  return ','.join(
    map(str, value if isinstance(value, (list, tuple)) else [value])
  )


class _Sweep(process.Process):
  """A running sweep."""

  def __init__(self, words, on_line, sweep_dir, choices):
    self._take = on_line
    self._choices = choices
    self._sweep_dir = sweep_dir and os.path.expanduser(sweep_dir)
    super().__init__('sweep', words)

  def _prepare(self, folder):
    self._sweep_dir = self._sweep_dir or os.path.join(folder, 'sweep')
    return [f'--sweep_dir={self._sweep_dir}']

  def _read(self, code):
    path = os.path.join(self._sweep_dir, 'results.csv')
    if code not in (0, 1) or not os.path.exists(path):
      return None
    with open(path, encoding='utf-8', newline='') as file:
      report = SweepReport(
        _read_row(row, self._choices) for row in csv.DictReader(file)
      )
    # With 1 a trial has failed, or the sweep itself, as where the disk is full.
    states = {row['state'] for row in report}
    is_over = states & _INCOMPLETE and not states & _OPEN
    return report if code == 0 or is_over else None


def _read_row(row, choices):
  """Returns a row of results.csv with the values that were tried, as given.

  Args:
    row: {name of the column: str}.
    choices: see run_sweep.
  """
  found = {}
  for name, text in row.items():
    tried = choices.get(name, ())
    given = {} if isinstance(tried, str) else {_format(v): v for v in tried}
    parsed = (text or None) if name in _TEXTS else _parse(text)
    found[name] = given.get(text, parsed)
  return found


def _parse(text):
  """Returns a text, as a number if it is one; None for ''."""
  for kind in (int, float):
    try:
      return kind(text)
    except ValueError:
      pass
  return text or None
