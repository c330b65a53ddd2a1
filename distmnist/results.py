"""What came of a sweep: a table, results.csv and results.png, best first.

Best is the highest validation accuracy where every trial that ended has one,
else the highest test accuracy; under halving, who came further is better.
"""

import collections
import csv
import math

from distmnist import files
from distmnist import trials as trials_lib

CSV, PLOT = 'results.csv', 'results.png'

_MAX_CAUSE = 60  # letters, in the table; results.csv has all of them
_MAX_PLACES = 8  # so many values stand side by side; more numbers have a scale
_INK, _FAINT, _DOT, _BEST = '#24292f', '#d0d7de', '#8250df', '#1a7f37'


def find_ranking(trials):
  """Returns the name of the accuracy by which trials are compared, a str."""
  results = [trial.result for trial in trials if trial.results]
  if results and all(r['validation_accuracy'] is not None for r in results):
    return 'validation_accuracy'
  return 'test_accuracy'


def rank(trials):
  """Returns the trials, the best first, then those without a result."""
  by = find_ranking(trials)

  def key(trial):
    if trial.state in trials_lib.LOST:
      return 2 + trials_lib.LOST.index(trial.state), 0, 0, trial.number
    if not trial.results:
      return 1, 0, 0, trial.number
    return 0, -len(trial.results), -trial.result[by], trial.number

  return sorted(trials, key=key)


def choose(trials, rung, number):
  """Returns the `number` best of the trials that have ended a rung, an int."""
  ended = [trial for trial in trials if len(trial.results) > rung]
  by = 'validation_accuracy'
  if any(trial.results[rung][by] is None for trial in ended):
    by = 'test_accuracy'
  ended.sort(key=lambda trial: -trial.results[rung][by])
  return ended[:number]


def make_rows(trials):
  """Returns [header, a row a trial, the best first], of str."""
  names = list(trials[0].combination)
  rows = [
    ['trial', *names, 'validation', 'test', 'cost', 'steps', 'secs']
    + ['state', 'cause']
  ]
  for trial in rank(trials):
    result = trial.result if trial.state not in trials_lib.LOST else {}
    rows.append(
      [
        trial.name,
        *trial.combination.values(),
        _format(result.get('validation_accuracy'), '.4f'),
        _format(result.get('test_accuracy'), '.4f'),
        _format_cost(result.get('final_cost')),
        _format(result.get('global_step'), 'd'),
        _format(trial.secs or None, '.1f'),
        trial.state,
        trial.cause,
      ]
    )
  return rows


def _format(value, spec):
  return '' if value is None else format(value, spec)


def _format_cost(cost):
  # A rate that is far too high can make it anything that is finite.
  return _format(cost, '.4f' if cost is None or cost < 1e4 else '.3e')


def format_table(trials):
  """Returns the lines of the table, a list of str; numbers to the right."""
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
  is_text = any(cell != '-' and not _is_number(cell) for cell in column[1:])
  return [
    cell.ljust(width) if is_text else cell.rjust(width) for cell in column
  ]


def write_csv(trials, path):
  """Writes the rows to the file `path`, whole or not at all."""
  with files.replacing(path) as file:
    csv.writer(file, lineterminator='\n').writerows(make_rows(trials))


def write_plot(trials, path):
  """Draws the trials into the file `path`.

  Raises:
    ImportError: there is no matplotlib.
  """
  # Only who draws needs it: the extra `plots`.
  from matplotlib import figure as figure_lib  # noqa: PLC0415

  figure = figure_lib.Figure(facecolor='white', dpi=110, layout='constrained')
  _draw(figure, trials)
  with files.replacing(path, 'wb') as file:
    figure.savefig(file, format='png')


def _draw(figure, trials):
  """A panel a flag, with the accuracy of each trial over the flag's value.

  Trials without a result are crosses on the axis, at no accuracy; several at
  one place have their number beside them. Who was dropped early is pale.
  """
  by, ranked = find_ranking(trials), rank(trials)
  names = list(trials[0].combination)
  columns = min(3, len(names))
  rows = -(-len(names) // columns)
  figure.set_size_inches(0.8 + 3.2 * columns, 0.7 + 2.6 * rows)
  shown = [t for t in ranked if t.results and t.state not in trials_lib.LOST]
  lost = [t for t in ranked if t.state in trials_lib.LOST]
  counts = f'{len(shown)} of {len(trials)} trials'
  if lost:
    counts += f', {len(lost)} failed or diverged (x)'
  if dropped := sum(t.state == trials_lib.DROPPED for t in shown):
    counts += f'; pale: {dropped} dropped by halving, after fewer steps'
  figure.suptitle(
    f'{by.replace("_", " ")}, %: {counts}',
    x=0.01,
    ha='left',
    fontsize=10,
    color=_INK,
  )
  heights = [100 * trial.result[by] for trial in shown] or [0, 100]
  low, high = min(heights), max(heights)
  span = max(high - low, 0.1)
  panels = figure.subplots(rows, columns, sharey=True, squeeze=False).flat
  for name, axes in zip(names, panels, strict=False):
    values = [trial.combination[name] for trial in trials]
    places = _set_scale(axes, values)

    def place(trial, name=name, places=places):
      return places[trial.combination[name]]

    if lost:
      for x, number in collections.Counter(map(place, lost)).items():
        # Its height is that of the axis: there is no accuracy to show.
        at = {'transform': axes.get_xaxis_transform(), 'clip_on': False}
        axes.plot([x], [0], 'x', color=_INK, markersize=6, **at)
        if number > 1:
          axes.text(x, 0.02, f' {number}', fontsize=7, color=_INK, **at)
    for trial in reversed(shown):
      is_best = trial is ranked[0]
      axes.plot(
        place(trial),
        100 * trial.result[by],
        'o',
        color=_BEST if is_best else _DOT,
        # Who was dropped had fewer steps.
        alpha=0.35 if trial.state == trials_lib.DROPPED else 0.8,
        markersize=8 if is_best else 5,
      )
    axes.margins(x=0.1)
    axes.set_ylim(low - 0.15 * span, high + 0.1 * span)
    axes.set_xlabel(name, fontsize=9, color=_INK)
    axes.set_axisbelow(True)
    axes.grid(color=_FAINT, linewidth=0.6)
    axes.tick_params(length=0, labelsize=8, colors=_INK)
    axes.spines[:].set_visible(False)
  for axes in list(panels):
    axes.remove()


def _set_scale(axes, values):
  """Gives the x axis the scale of `values`, str; returns {value: place}."""
  different = list(dict.fromkeys(values))
  are_numbers = all(map(_is_number, different))
  if are_numbers and len(different) > _MAX_PLACES:
    numbers = [float(value) for value in different]
    if min(numbers) > 0 and max(numbers) >= 10 * min(numbers):
      axes.set_xscale('log')
      ticks = _make_log_ticks(min(numbers), max(numbers))
      axes.set_xticks(ticks, [f'{tick:g}' for tick in ticks])
      axes.set_xticks([], minor=True)  # Their labels would lie on one another.
    return dict(zip(different, numbers, strict=True))
  different.sort(key=float if are_numbers else str)
  axes.set_xticks(range(len(different)), different)
  return {value: place for place, value in enumerate(different)}


def _make_log_ticks(low, high):
  """Returns both ends, and the powers of ten that are not close to one."""
  exponents = range(
    math.ceil(math.log10(2 * low)), math.floor(math.log10(high / 2)) + 1
  )
  powers = [10.0**exponent for exponent in exponents]
  return [low, *powers[:: max(1, len(powers) // 3)], high]


def _is_number(text):
  try:
    float(text)
  except ValueError:
    return False
  return True
