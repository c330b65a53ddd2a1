"""The results of a sweep, best first: the table and results.csv."""

from __future__ import annotations

import csv
from collections.abc import Sequence

from distmnist.common import files
from distmnist.sweeps import groups as groups_lib
from distmnist.sweeps import ranking, results

_MAX_CAUSE = 60  # characters, in the table; the files have all of them
_DEVIATION = '_std'  # after the name of the column of the mean
# Left out of the table, not of the files, where no trial has any of it.
_MAY_BE_LEFT_OUT = 'staleness', 'MB', results.SPEED, 'examples', 'cause'


def make_rows(groups: Sequence[groups_lib.Group]) -> list[list[str]]:
  """Returns [header, one row per group, best first].

  Numbers are the means of the `n` trials of a group that have a result; `n` and
  the deviations are missing where each group is one trial.
  """
  trials = [trial for group in groups for trial in group.trials]
  judged = ranking.find_columns(trials)
  is_repeated = any(len(group.trials) > 1 for group in groups)
  rows = []
  for group in ranking.rank(groups):
    # No dict: a flag of the user's may be called as a column is.
    row = [('trials' if is_repeated else 'trial', group.name)]
    row += group.flags.items()
    for key in judged:
      name, spec = key.removesuffix('_accuracy'), choose_spec(key)
      row.append((name, _format(group.mean(key), spec)))
      if is_repeated:
        deviation = _format(group.deviation(key), spec)
        row.append((name + _DEVIATION, deviation))
    if is_repeated:
      row.append(('n', str(len(group.results))))
    rows.append([*row, *_make_columns(group, judged).items()])
  header = [name for name, _ in rows[0]]
  return [header, *([cell for _, cell in row] for row in rows)]


def _make_columns(
  group: groups_lib.Group, judged: Sequence[str]
) -> dict[str, str]:
  """Returns {name: cell} of the columns that follow those of the metric."""
  pulled, pushed = group.mean('bytes_pulled'), group.mean('bytes_pushed')
  megabytes = None
  if pulled is not None and pushed is not None:
    megabytes = (pulled + pushed) / 1e6
  speed = {results.SPEED: _format(group.mean(results.SPEED), '.0f')}
  return {
    'loss': _format_loss(group.mean('final_loss')),
    'staleness': _format(group.mean('staleness_mean'), '.2f'),
    'MB': _format(megabytes, '.4g' if (megabytes or 0) < 1000 else '.0f'),
    **({} if results.SPEED in judged else speed),
    'updates': _format(group.mean('global_step'), '.0f'),
    'examples': _format(group.mean('examples'), '.0f'),
    'secs': _format(group.secs or None, '.1f'),
    'state': group.state,
    'cause': group.cause,
  }


def choose_spec(key: str) -> str:
  """Returns the format spec of a key: a loss may be far below 0.0001."""
  if key == results.SPEED:
    return '.0f'
  return '.4f' if key.endswith('_accuracy') else '.4g'


def _format(value: float | None, spec: str) -> str:
  return '' if value is None else format(value, spec)


def _format_loss(loss: float | None) -> str:
  # A learning rate that is far too high can make it any finite number.
  return _format(loss, '.4f' if loss is None or loss < 1e4 else '.3e')


def format_lines(groups: Sequence[groups_lib.Group]) -> list[str]:
  """Returns the lines of the table, numbers right-aligned.

  A deviation is in the column of its mean: '0.9584 ± 0.0012'.
  """
  header, *rows = make_rows(groups)
  shown: list[list[str]] = []
  for name, *cells in zip(header, *rows, strict=True):
    is_empty = all(cell in ('', '0', '0.00') for cell in cells)
    if is_empty and name in _MAY_BE_LEFT_OUT:
      continue
    if shown and name == shown[-1][0] + _DEVIATION:
      head, *means = shown.pop()
      pairs = zip(means, cells, strict=True)
      cells = [f'{mean} ± {by}' if by else mean for mean, by in pairs]
      name = head
    elif name == 'cause':
      cells = [_shorten(cell) for cell in cells]
    shown.append([name, *cells])
  columns = [_align([cell or '-' for cell in column]) for column in shown]
  return ['  '.join(row).rstrip() for row in zip(*columns, strict=True)]


def _shorten(cause: str) -> str:
  return f'{cause[:_MAX_CAUSE]}...' if len(cause) > _MAX_CAUSE else cause


def _align(column: Sequence[str]) -> list[str]:
  width = max(map(len, column))
  numbers = [cell.partition(' ±')[0] for cell in column[1:] if cell != '-']
  if all(map(is_number, numbers)):
    return [cell.rjust(width) for cell in column]
  return [cell.ljust(width) for cell in column]


def write_csv(groups: Sequence[groups_lib.Group], path: str) -> None:
  """Writes the rows to the file `path`, whole or not at all."""
  with files.replacing(path) as file:
    csv.writer(file, lineterminator='\n').writerows(make_rows(groups))


def is_number(text: str) -> bool:
  try:
    float(text)
  except ValueError:
    return False
  return True
