"""The benchmarks' figures; needs the extra `plots` of setup.py."""

import statistics

from matplotlib import figure as figure_lib
from matplotlib import ticker

INK, FAINT = '#24292f', '#d0d7de'
BLUE, ORANGE, VIOLET, GRAY = '#1f6feb', '#f0883e', '#8250df', '#8c959f'


def make_figure(size, title):
  """Returns a Figure; a white background keeps it readable on a dark page."""
  figure = figure_lib.Figure(
    figsize=size, dpi=110, facecolor='white', layout='constrained'
  )
  figure.suptitle(title, x=0.01, ha='left', fontsize=10, color=INK)
  return figure


def strip_axes(axes):
  """Leaves only the text of the axes."""
  axes.tick_params(length=0, labelsize=8, colors=INK)
  axes.spines[:].set_visible(False)
  axes.xaxis.set_major_locator(ticker.MaxNLocator(4, steps=[1, 2, 5, 10]))


def build_bars(panels, title):
  """Returns a Figure: one bar per row, the first one on top.

  Args:
    panels: {title: list of (name, value or None, status, is_ours)}; the status
      is shown where there is no value.
    title: str.
  """
  figure = make_figure((4 + 4 * len(panels), 4.2), title)
  all_axes = figure.subplots(1, len(panels), squeeze=False)[0]
  for axes, (name, rows) in zip(all_axes, panels.items(), strict=True):
    names, values, statuses, are_ours = zip(*rows[::-1], strict=True)
    lengths = [value or 0 for value in values]
    bars = axes.barh(
      names,
      lengths,
      0.65,
      color=[BLUE if is_ours else GRAY for is_ours in are_ours],
    )
    labels = [
      f'{value:,.0f}' if value else status
      for value, status in zip(values, statuses, strict=True)
    ]
    axes.bar_label(bars, labels, padding=3, fontsize=8)
    axes.set_title(name, fontsize=9, loc='left')
    axes.set_xlim(0, 1.2 * max([1, *lengths]))
    axes.xaxis.set_major_formatter('{x:,.0f}')
    strip_axes(axes)
  return figure


def write(axes, x, place, text):
  """Writes beside the point (x, place); the grid lines stop there."""
  axes.annotate(
    text,
    (x, place),
    xytext=(5, 0),
    textcoords='offset points',
    va='center',
    fontsize=7.5,
    color=INK,
    bbox={'facecolor': 'white', 'edgecolor': 'none', 'pad': 0.5},
  )


def draw_title(axes, *parts):
  """Draws `parts`, (text, color) each, in a row: a legend in words."""
  xy, coordinates = (0, 1.01), 'axes fraction'
  for text, color in parts:
    coordinates = axes.annotate(
      text, xy, xycoords=coordinates, va='bottom', fontsize=9, color=color
    )
    xy = (1, 0)  # The last part's right end.


def draw_dots(axes, values):
  """Draws the mean of each row, and of several the deviation and each of them.

  Args:
    values: list of (list of float, their text, or the text in their place).
  """
  known = [value for of_row, _ in values for value in of_row] or [0, 100]
  low, high = min(known), max(known)
  span = max(high - low, 0.1)
  axes.set_xlim(low - 0.1 * span, high + 0.3 * span)
  for place, (of_row, text) in enumerate(values):
    end = max(of_row, default=low - 0.1 * span)
    if of_row:
      mean, by = statistics.fmean(of_row), None
      if len(of_row) > 1:
        by = statistics.stdev(of_row)
        end = max(end, mean + by)
        for value in of_row:
          at = {'color': VIOLET, 'markerfacecolor': 'white', 'markersize': 3}
          axes.plot(value, place, 'o', zorder=3, **at)
      at = {'color': VIOLET, 'markersize': 6, 'capsize': 2, 'linewidth': 1.2}
      axes.errorbar(mean, place, xerr=by, fmt='o', **at)
    write(axes, end, place, text)


def draw_bars(axes, values, *colors):
  """Draws one bar per row.

  Args:
    values: list of (list of float, the parts of the bar, and its text); without
      parts the text stands alone; '' draws no text.
    *colors: str, of the parts.
  """
  end = 1
  for place, (parts, text) in enumerate(values):
    left = 0
    for part, color in zip(parts, colors, strict=False):
      axes.barh(place, part, 0.55, left=left, color=color)
      left += part
    if text:
      write(axes, left, place, text)
    end = max(end, left)
  axes.set_xlim(0, 1.25 * end)
  axes.xaxis.set_major_formatter('{x:,.0f}')


def build_rules(rows, title, format_mb):
  """Returns a Figure: one line per rule, the most accurate one on top.

  One panel per quantity, and each rule's name once, at the left: so many rules
  are too close to one another for labels in a scatter plot.

  Args:
    rows: list of dict, at least one, as from strategy_table.make_row.
    title: str.
    format_mb: callable, float -> str.
  """
  rows = sorted(rows, key=lambda row: row['test_accuracy'] or 0)
  figure = make_figure((9.5, 1.1 + 0.25 * len(rows)), title)
  figure.get_layout_engine().set(w_pad=0.1, h_pad=0.06)
  # None of them knows how long it took on a busy machine.
  has_wall = any(row['wall_secs'] is not None for row in rows)
  widths = (3, 2, 3) if has_wall else (4, 4)
  all_axes = figure.subplots(1, len(widths), sharey=True, width_ratios=widths)
  accuracy, moved = all_axes[0], all_axes[-1]
  for axes in all_axes:
    axes.set_axisbelow(True)
    axes.grid(axis='y', color=FAINT, linewidth=0.6)
    strip_axes(axes)
  accuracy.set_yticks(range(len(rows)), [row['name'] for row in rows])
  accuracy.set_ylim(-0.6, len(rows) - 0.4)

  percents = [[100 * x for x in row['accuracies']] for row in rows]
  draw_title(accuracy, ('test accuracy, %', VIOLET))
  draw_dots(
    accuracy,
    [
      (
        percent,
        f'{statistics.fmean(percent):.2f}' if percent else row['status'],
      )
      for percent, row in zip(percents, rows, strict=True)
    ],
  )
  if has_wall:
    draw_title(all_axes[1], ('wall seconds', INK))
    draw_bars(
      all_axes[1],
      [
        ([row['wall_secs']], f'{row["wall_secs"]:.0f}')
        if row['wall_secs'] is not None
        else ([], '')
        for row in rows
      ],
      GRAY,
    )
  draw_title(
    moved,
    *(('MB pulled', BLUE), (' + ', INK), ('pushed', ORANGE)),
    (' a worker', INK),
  )
  pairs = [[row['mb_pulled'], row['mb_pushed']] for row in rows]
  draw_bars(
    moved,
    [([], '-') if None in mb else (mb, format_mb(sum(mb))) for mb in pairs],
    *(BLUE, ORANGE),
  )
  return figure


def build_seconds(panels, title):
  """Returns a Figure: images/s second by second, one panel per comparison.

  Args:
    panels: {title: (without faults, with faults, hits)}: two lists of the
      images of each second, and the faults as a list of (seconds, kind).
    title: str.
  """
  figure = make_figure((9.5, 0.6 + 1.7 * max(1, len(panels))), title)
  if not panels:
    return figure
  all_axes = figure.subplots(len(panels), 1, squeeze=False)[:, 0]
  for axes, (name, panel) in zip(all_axes, panels.items(), strict=True):
    without, with_faults, hits = panel
    axes.plot(without, color=GRAY, linewidth=1)
    axes.plot(with_faults, color=BLUE, linewidth=1.2)
    top = 1.15 * max([1, *without, *with_faults])
    for secs, kind in hits:
      axes.axvline(secs, color=ORANGE, linewidth=1)
      axes.text(secs, top, f' {kind}', va='top', fontsize=7.5, color=ORANGE)
    axes.set_ylim(0, top)
    axes.set_xlim(0, max(len(without), len(with_faults), 2) - 1)
    strip_axes(axes)
    axes.yaxis.set_major_locator(ticker.MaxNLocator(3))
    axes.yaxis.set_major_formatter('{x:,.0f}')
    draw_title(
      axes,
      (f'{name}   images/s ', INK),
      *(('without', GRAY), (' and ', INK), ('with faults', BLUE)),
    )
  all_axes[-1].set_xlabel('seconds', fontsize=8, color=INK)
  return figure


def build_steps(rows, title):
  """Returns a Figure: one bar per rule, the parts of a worker's step.

  Args:
    rows: list of (name, {kind: milliseconds}), the first one on top.
    title: str.
  """
  colors = {'compute': BLUE, 'pull': VIOLET, 'push': ORANGE, 'wait': FAINT}
  figure = make_figure((9.5, 1 + 0.3 * len(rows)), title)
  axes = figure.subplots()
  strip_axes(axes)
  axes.set_yticks(range(len(rows)), [name for name, _ in rows[::-1]])
  values = [[parts.get(kind, 0) for kind in colors] for _, parts in rows[::-1]]
  draw_bars(axes, [(v, f'{sum(v):.1f}') for v in values], *colors.values())
  draw_title(
    axes,
    ('milliseconds of a step: ', INK),
    *((f' {kind} ', c if c != FAINT else GRAY) for kind, c in colors.items()),
  )
  return figure


def build_staleness(panels, title, columns=4):
  """Returns a Figure: how stale pushes were, one panel per rule.

  Args:
    panels: {rule: {staleness: number of pushes}}, int each.
    title: str.
    columns: int, panels side by side.
  """
  num_rows = -(-len(panels) // columns)
  figure = make_figure((9.5, 0.6 + 1.3 * num_rows), title)
  grid = figure.subplots(num_rows, columns, squeeze=False).flat
  for axes, (name, counts) in zip(grid, panels.items(), strict=False):
    total = sum(counts.values())
    axes.bar(
      list(counts), [100 * n / total for n in counts.values()], color=BLUE
    )
    axes.set_title(name, fontsize=8, loc='left', color=INK)
    axes.set_xlim(-0.6, max(6, *counts) + 0.6)
    axes.set_ylim(0, 105)
    strip_axes(axes)
    axes.yaxis.set_major_formatter('{x:.0f} %')
  for axes in list(grid)[len(panels) :]:
    axes.set_visible(False)
  return figure
