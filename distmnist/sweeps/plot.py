"""Draws the results of a sweep: results.png."""

import collections
import math

from distmnist.common import files
from distmnist.sweeps import ranking, results
from distmnist.sweeps import trials as trials_lib
from distmnist.sweeps.table import is_number

_MAX_PLACES = 8  # up to this many values: a category axis; more: a numeric one
_INK, _FAINT, _DOT, _BEST = '#24292f', '#d0d7de', '#8250df', '#1a7f37'


def write(trials, path):
  """Draws the trials into the file `path`.

  Raises:
    ImportError: matplotlib is not installed.
  """
  # Only a plot needs it; the extra `plots` installs it.
  from matplotlib import figure as figure_lib  # noqa: PLC0415

  figure = figure_lib.Figure(facecolor='white', dpi=110, layout='constrained')
  _draw(figure, trials)
  with files.replacing(path, 'wb') as file:
    figure.savefig(file, format='png')


def _draw(figure, trials):
  """Draws a panel per flag: each trial's metric over the flag's value.

  Trials that failed or diverged are crosses on the axis; where several
  coincide, their number is beside them. Trials that were dropped early are
  pale.
  """
  by, ranked = ranking.find_ranking(trials), ranking.rank(trials)
  names = list(trials[0].combination)
  columns = min(3, len(names))
  rows = -(-len(names) // columns)
  figure.set_size_inches(0.8 + 3.2 * columns, 0.7 + 2.6 * rows)
  shown = [t for t in ranked if t.results and t.state not in trials_lib.LOST]
  lost = [t for t in ranked if t.state in trials_lib.LOST]
  name, factor = results.describe(by), 1
  if by.endswith('_accuracy'):
    name, factor = f'{name}, %', 100
  title = f'{name}: {_describe(trials, shown, lost)}'
  figure.suptitle(title, x=0.01, ha='left', fontsize=10, color=_INK)
  heights = [factor * trial.result[by] for trial in shown] or [0, factor]
  low, high = min(heights), max(heights)
  span = max(high - low, 0.001 * factor)
  panels = figure.subplots(rows, columns, sharey=True, squeeze=False).flat
  for name, axes in zip(names, panels, strict=False):
    places = _set_scale(axes, [trial.combination[name] for trial in trials])
    _draw_lost(axes, [places[trial.combination[name]] for trial in lost])
    # The best one last, so that it is on top.
    for trial, height in reversed(list(zip(shown, heights, strict=False))):
      is_best = trial is ranked[0]
      axes.plot(
        places[trial.combination[name]],
        height,
        'o',
        color=_BEST if is_best else _DOT,
        alpha=0.35 if trial.state == trials_lib.DROPPED else 0.8,
        markersize=8 if is_best else 5,
      )
    axes.set_ylim(low - 0.15 * span, high + 0.1 * span)
    _set_style(axes, name)
  for axes in list(panels):
    axes.remove()


def _describe(trials, shown, lost):
  text = f'{len(shown)} of {len(trials)} trials'
  if lost:
    text += f', {len(lost)} failed or diverged (x)'
  if dropped := sum(t.state == trials_lib.DROPPED for t in shown):
    text += f'; pale: {dropped} dropped by halving, after fewer steps'
  return text


def _draw_lost(axes, places):
  # They lie on the axis, as they have no result to show.
  at = {'transform': axes.get_xaxis_transform(), 'clip_on': False}
  for x, number in collections.Counter(places).items():
    axes.plot([x], [0], 'x', color=_INK, markersize=6, **at)
    if number > 1:
      axes.text(x, 0.02, f' {number}', fontsize=7, color=_INK, **at)


def _set_style(axes, name):
  axes.margins(x=0.1)
  axes.set_xlabel(name, fontsize=9, color=_INK)
  axes.set_axisbelow(True)
  axes.grid(color=_FAINT, linewidth=0.6)
  axes.tick_params(length=0, labelsize=8, colors=_INK)
  axes.spines[:].set_visible(False)


def _set_scale(axes, values):
  """Scales the x axis for `values` (str); returns {value: place}."""
  different = list(dict.fromkeys(values))
  are_numbers = all(map(is_number, different))
  if are_numbers and len(different) > _MAX_PLACES:
    numbers = [float(value) for value in different]
    if min(numbers) > 0 and max(numbers) >= 10 * min(numbers):
      axes.set_xscale('log')
      ticks = _make_log_ticks(min(numbers), max(numbers))
      axes.set_xticks(ticks, [f'{tick:g}' for tick in ticks])
      axes.set_xticks([], minor=True)  # Their labels would overlap.
    return dict(zip(different, numbers, strict=True))
  different.sort(key=float if are_numbers else str)
  axes.set_xticks(range(len(different)), different)
  return {value: place for place, value in enumerate(different)}


def _make_log_ticks(low, high):
  """Returns both ends, and the powers of ten that are close to neither."""
  exponents = range(
    math.ceil(math.log10(2 * low)), math.floor(math.log10(high / 2)) + 1
  )
  powers = [10.0**exponent for exponent in exponents]
  return [low, *powers[:: max(1, len(powers) // 3)], high]
