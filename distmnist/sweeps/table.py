"""The results of a sweep, best first: the table and results.csv."""

import csv

from distmnist.common import files
from distmnist.sweeps import ranking, results
from distmnist.sweeps import trials as trials_lib

_MAX_CAUSE = 60  # characters, in the table; results.csv has all of them


def make_rows(trials):
  """Returns [header, one row per trial, best first], each a list of str."""
  names = list(trials[0].combination)
  judged = ranking.find_columns(trials)
  shown = [key.removesuffix('_accuracy') for key in judged]
  rows = [
    ['trial', *names, *shown, 'loss', 'steps', 'secs'] + ['state', 'cause']
  ]
  for trial in ranking.rank(trials):
    result = trial.result if trial.state not in trials_lib.LOST else {}
    rows.append(
      [
        trial.name,
        *trial.combination.values(),
        *(_format(result.get(key), choose_spec(key)) for key in judged),
        _format_loss(result.get('final_loss')),
        _format(result.get('global_step'), 'd'),
        _format(trial.secs or None, '.1f'),
        trial.state,
        trial.cause,
      ]
    )
  return rows


def choose_spec(key):
  """Returns the format spec of a key: a loss may be far below 0.0001."""
  if key == results.SPEED:
    return '.0f'
  return '.4f' if key.endswith('_accuracy') else '.4g'


def _format(value, spec):
  return '' if value is None else format(value, spec)


def _format_loss(loss):
  # A learning rate that is far too high can make it any finite number.
  return _format(loss, '.4f' if loss is None or loss < 1e4 else '.3e')


def format_lines(trials):
  """Returns the lines of the table (list of str), numbers right-aligned."""
  rows = [[cell or '-' for cell in row] for row in make_rows(trials)]
  for row in rows:
    cause = row[-1]
    if len(cause) > _MAX_CAUSE:
      row[-1] = f'{cause[:_MAX_CAUSE]}...'
  if all(row[-1] == '-' for row in rows[1:]):
    rows = [row[:-1] for row in rows]
  columns = [_align(column) for column in zip(*rows, strict=True)]
  return ['  '.join(row).rstrip() for row in zip(*columns, strict=True)]


def _align(column):
  width = max(map(len, column))
  is_text = any(cell != '-' and not is_number(cell) for cell in column[1:])
  return [
    cell.ljust(width) if is_text else cell.rjust(width) for cell in column
  ]


def write_csv(trials, path):
  """Writes the rows to the file `path`, whole or not at all."""
  with files.replacing(path) as file:
    csv.writer(file, lineterminator='\n').writerows(make_rows(trials))


def is_number(text):
  try:
    float(text)
  except ValueError:
    return False
  return True
