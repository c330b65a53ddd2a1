"""Draws the results of a sweep: results.png, results.svg and results.pdf."""

from __future__ import annotations

import collections
import math
import statistics
import textwrap
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from distmnist.common import files
from distmnist.sweeps import curves as curves_lib
from distmnist.sweeps import groups as groups_lib
from distmnist.sweeps import ranking, results, search_space
from distmnist.sweeps import trials as trials_lib
from distmnist.sweeps.table import is_number

if TYPE_CHECKING:
  from matplotlib.axes import Axes
  from matplotlib.figure import Figure

KINDS = 'png', 'svg', 'pdf'  # For a page, and without loss for a paper.
_MAX_PLACES = 8  # up to this many values: a category axis; more: a numeric one
_MAX_LETTERS = 24  # of all names on an axis that stand side by side
_INK, _FAINT, _DOT, _BEST = '#24292f', '#d0d7de', '#8250df', '#1a7f37'
# Of curves, after that of the best (Okabe & Ito: told apart by all eyes).
_COLORS = (
  *('#0072b2', '#d55e00', '#cc79a7', '#56b4e9'),
  *('#e69f00', '#000000', '#8c959f'),
)


def check_ready() -> None:
  """Checks that a picture could be drawn.

  Raises:
    ImportError: matplotlib is not installed.
  """
  # Only a plot needs it; the extra `plots` installs it.
  import matplotlib.figure  # noqa: F401, PLC0415


def write(groups: Sequence[groups_lib.Group], path: str) -> None:
  """Draws the groups into the files `path` + '.png', '.svg' and '.pdf'.

  Raises:
    ImportError: matplotlib is not installed.
  """
  import matplotlib  # noqa: PLC0415
  from matplotlib import figure as figure_lib  # noqa: PLC0415

  figure = figure_lib.Figure(facecolor='white', dpi=110, layout='constrained')
  _draw(figure, groups)
  # Many journals refuse fonts of type 3; the same results are the same file.
  settings: dict[Any, Any] = {
    'pdf.fonttype': 42,
    'svg.hashsalt': 'distmnist',
  }
  with matplotlib.rc_context(settings):
    for kind in KINDS:
      date = {'svg': 'Date', 'pdf': 'CreationDate'}.get(kind)
      with files.replacing(f'{path}.{kind}', 'wb') as file:
        figure.savefig(file, format=kind, metadata={date: None} if date else {})


def _draw(figure: Figure, groups: Sequence[groups_lib.Group]) -> None:
  """Draws a panel per flag, and below, how the best have learnt.

  In a panel is each group's metric over the flag's value: the mean and the
  deviation of its trials, and each of them as a small dot. Groups of which no
  trial has a result are crosses on the axis; where several coincide, their
  number is beside them. What was dropped early is pale.
  """
  trials = [trial for group in groups for trial in group.trials]
  by, ranked = ranking.find_ranking(trials), ranking.rank(groups)
  names = list(groups[0].flags)
  shown = [group for group in ranked if group.results]
  lost = [group for group in ranked if _is_lost(group)]
  label, factor = _describe_metric(by)
  what, curves = curves_lib.read(shown, by)
  columns = min(3, len(names))
  rows = -(-len(names) // columns)
  width = max(0.8 + 3.2 * columns, 6.4 if curves else 0)
  figure.set_size_inches(width, 0.7 + 2.6 * rows + (3.2 if curves else 0))
  title = f'{label}: {_describe(trials, groups, lost)}'
  title = textwrap.fill(title, round(12 * width))  # letters an inch
  figure.suptitle(title, x=0.01, ha='left', fontsize=10, color=_INK)
  heights = [2.6] * rows + [3.2] * bool(curves)
  grid = figure.add_gridspec(len(heights), columns, height_ratios=heights)
  values = [factor * x for group in shown for x in _find_extent(group, by)]
  low, high = min(values, default=0), max(values, default=factor)
  span = max(high - low, 0.001 * factor)
  axes = None
  for place, name in enumerate(names):
    axes = figure.add_subplot(grid[divmod(place, columns)], sharey=axes)
    axes.tick_params(labelleft=place % columns == 0)
    places = _set_scale(axes, [group.flags[name] for group in groups])
    _draw_lost(axes, [places[group.flags[name]] for group in lost])
    # The best one last, so that it is on top.
    for group in reversed(shown):
      x, is_best = places[group.flags[name]], group is ranked[0]
      _draw_group(axes, x, group, by, factor, is_best)
    axes.set_ylim(low - 0.15 * span, high + 0.1 * span)
    _set_style(axes, name)
  if curves:
    _draw_curves(figure.add_subplot(grid[rows, :]), curves, what)


def _find_extent(group: groups_lib.Group, by: str) -> list[float]:
  """Returns the values of a group, and both ends of its bar."""
  values, deviation = group.find_values(by), group.deviation(by) or 0.0
  mean = statistics.fmean(values)
  return [*values, mean - deviation, mean + deviation]


def _is_lost(group: groups_lib.Group) -> bool:
  return all(state in trials_lib.LOST for state in group.states)


def _describe_metric(key: str) -> tuple[str, int]:
  """Returns what an axis says of a key, and by what its values are scaled."""
  if key.endswith('_accuracy'):
    return f'{results.describe(key)}, %', 100
  return results.describe(key), 1


def _describe(
  trials: Sequence[trials_lib.Trial],
  groups: Sequence[groups_lib.Group],
  lost: Sequence[groups_lib.Group],
) -> str:
  num_shown = sum(len(group.results) for group in groups)
  text = f'{num_shown} of {len(trials)} trials'
  if (num_seeds := max(len(group.trials) for group in groups)) > 1:
    text += f', {num_seeds} seeds each: mean and deviation'
  if num_lost := sum(trial.state in trials_lib.LOST for trial in trials):
    text += f', {num_lost} failed or diverged' + (' (x)' if lost else '')
  if dropped := sum(t.state == trials_lib.DROPPED for t in trials):
    text += f'; pale: {dropped} dropped by halving, after fewer steps'
  return text


def _draw_group(
  axes: Axes,
  x: float,
  group: groups_lib.Group,
  by: str,
  factor: int,
  is_best: bool,
) -> None:
  color = _BEST if is_best else _DOT
  alpha = 0.35 if trials_lib.DROPPED in group.states else 0.8
  size, deviation = 8 if is_best else 5, group.deviation(by)
  values = group.find_values(by)
  if deviation is not None:
    for value in values:
      at: dict[str, Any] = {
        'color': color,
        'markerfacecolor': 'white',
        'markersize': 3.5,
      }
      axes.plot(x, factor * value, 'o', alpha=alpha, zorder=3, **at)
    deviation *= factor
  axes.errorbar(
    *(x, factor * statistics.fmean(values), deviation),
    fmt='o',
    color=color,
    alpha=alpha,
    markersize=size,
    capsize=3,
    linewidth=1.2,
  )


def _draw_curves(
  axes: Axes, curves: Iterable[curves_lib.Curve], what: str
) -> None:
  label, factor = _describe_metric(what)
  colors = (_BEST, *_COLORS)
  for curve, color in reversed(list(zip(curves, colors, strict=False))):
    text = search_space.describe(curve.group.flags)
    heights = [factor * mean for mean in curve.means]
    axes.plot(curve.examples, heights, color=color, linewidth=1.4, label=text)
    deviations = [by for by in curve.deviations if by is not None]
    if len(deviations) == len(heights):
      pairs = list(zip(heights, deviations, strict=True))
      lows = [height - factor * by for height, by in pairs]
      highs = [height + factor * by for height, by in pairs]
      band: dict[str, Any] = {'color': color, 'alpha': 0.15, 'linewidth': 0}
      axes.fill_between(curve.examples, lows, highs, **band)
  lines, texts = axes.get_legend_handles_labels()
  axes.legend(lines[::-1], texts[::-1], fontsize=7, frameon=False)
  _set_style(axes, 'examples seen')
  axes.margins(x=0.02)
  axes.xaxis.set_major_formatter('{x:,.0f}')
  axes.set_ylabel(label, fontsize=9, color=_INK)


def _draw_lost(axes: Axes, places: Iterable[float]) -> None:
  # They lie on the axis, as they have no result to show.
  at: dict[str, Any] = {
    'transform': axes.get_xaxis_transform(),
    'clip_on': False,
  }
  for x, number in collections.Counter(places).items():
    axes.plot([x], [0], 'x', color=_INK, markersize=6, **at)
    if number > 1:
      axes.text(x, 0.02, f' {number}', fontsize=7, color=_INK, **at)


def _set_style(axes: Axes, name: str) -> None:
  axes.margins(x=0.1)
  axes.set_xlabel(name, fontsize=9, color=_INK)
  axes.set_axisbelow(True)
  axes.grid(color=_FAINT, linewidth=0.6)
  axes.tick_params(length=0, labelsize=8, colors=_INK)
  axes.spines[:].set_visible(False)


def _set_scale(axes: Axes, values: Iterable[str]) -> dict[str, float]:
  """Scales the x axis for `values`; returns {value: place}."""
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
  if sum(map(len, different)) > _MAX_LETTERS:
    axes.tick_params(axis='x', labelrotation=30)
    for tick in axes.get_xticklabels():
      tick.set_horizontalalignment('right')
  return {value: place for place, value in enumerate(different)}


def _make_log_ticks(low: float, high: float) -> list[float]:
  """Returns both ends, and the powers of ten that are close to neither."""
  exponents = range(
    math.ceil(math.log10(2 * low)), math.floor(math.log10(high / 2)) + 1
  )
  powers = [10.0**exponent for exponent in exponents]
  return [low, *powers[:: max(1, len(powers) // 3)], high]
