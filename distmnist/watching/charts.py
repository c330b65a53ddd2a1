"""Charts as SVG strings: lines, bars, spans of time. Pure."""

import html
import math

COLOURS = (
  *('#1f77b4', '#d62728', '#2ca02c', '#9467bd', '#ff7f0e'),
  *('#17becf', '#8c564b', '#e377c2', '#7f7f7f'),
)
_WIDTH, _HEIGHT = 460, 240
_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 12, 28, 34
_MAX_POINTS = 400
_ROW = 22


def make_lines(title, series, x_label):
  """Returns a chart (str) with one line per series.

  Args:
    title: str.
    series: {name: list of (x, y)}, floats; an empty series is left out.
    x_label: str.
  """
  series = {name: thin(points) for name, points in series.items() if points}
  if not series:
    return ''
  xs = [x for points in series.values() for x, _ in points]
  ys = [y for points in series.values() for _, y in points]
  x_scale = _Scale(min(xs), max(xs), _LEFT, _WIDTH - _RIGHT)
  y_scale = _Scale(min(0, *ys), max(ys), _HEIGHT - _BOTTOM, _TOP)
  parts = [*_make_axes(x_scale, y_scale, x_label)]
  for i, (name, points) in enumerate(series.items()):
    colour = COLOURS[i % len(COLOURS)]
    places = ' '.join(
      f'{x_scale.at(x):.1f},{y_scale.at(y):.1f}' for x, y in points
    )
    parts.append(
      f'<polyline class="curve" data-name="{html.escape(name)}" fill="none"'
      f' stroke="{colour}" stroke-width="1.5" points="{places}">'
      f'<title>{html.escape(name)}</title></polyline>'
    )
    if len(points) == 1:
      x, y = places.split(',')
      parts.append(f'<circle cx="{x}" cy="{y}" r="3" fill="{colour}"/>')
  return _frame(title, parts, _HEIGHT) + _make_legend(series)


def thin(points):
  """Returns at most _MAX_POINTS of `points`, including the last."""
  step = max(1, math.ceil(len(points) / _MAX_POINTS))
  return points[::-1][::step][::-1]


def make_bars(title, counts, x_label):
  """Returns a histogram (str) of {whole number: how often}.

  All bars from the 30th on are merged into one, `≥` its number.
  """
  if not counts:
    return ''
  bars = sorted(counts.items())
  if len(bars) > 30:
    bars = [*bars[:29], (f'≥{bars[29][0]}', sum(n for _, n in bars[29:]))]
  y_scale = _Scale(0, max(n for _, n in bars), _HEIGHT - _BOTTOM, _TOP)
  width = (_WIDTH - _LEFT - _RIGHT) / len(bars)
  parts = _make_y_axis(y_scale)
  every = math.ceil(len(bars) / 15)
  for i, (number, n) in enumerate(bars):
    x, y = _LEFT + i * width, y_scale.at(n)
    parts.append(
      f'<rect class="bar" x="{x + 1:.1f}" y="{y:.1f}" width="{width - 2:.1f}"'
      f' height="{_HEIGHT - _BOTTOM - y:.1f}" fill="{COLOURS[0]}">'
      f'<title>{html.escape(str(number))}: {n}</title></rect>'
    )
    if i % every == 0:
      parts.append(
        _text(x + width / 2, _HEIGHT - _BOTTOM + 13, str(number), 'middle')
      )
  parts.append(_text((_LEFT + _WIDTH) / 2, _HEIGHT - 4, x_label, 'middle'))
  return _frame(title, parts, _HEIGHT)


def make_spans(title, rows, marks, num_secs):
  """Returns a chart (str) of what happened when: one row per name.

  Args:
    title: str.
    rows: {name: list of (start, end, text)}, seconds.
    marks: list of (name, time, text); a name of None draws a line across rows.
    num_secs: float, the end of the time axis.
  """
  height = _TOP + _ROW * len(rows) + _BOTTOM
  width = 2 * _WIDTH
  x_scale = _Scale(0, num_secs, _LEFT + 30, width - _RIGHT)
  parts, places = [], {}
  for i, (name, spans) in enumerate(rows.items()):
    y = places[name] = _TOP + i * _ROW
    parts.append(_text(_LEFT + 24, y + 14, name, 'end'))
    for start, end, text in spans:
      x = x_scale.at(start)
      length = max(2, x_scale.at(end) - x)
      parts.append(
        f'<rect class="life" x="{x:.1f}" y="{y + 3}" width="{length:.1f}"'
        f' height="{_ROW - 7}" fill="#9ecae1">'
        f'<title>{html.escape(text)}</title></rect>'
      )
  bottom = height - _BOTTOM
  for name, time, text in marks:
    x, y = x_scale.at(time), places.get(name)
    top, low = (_TOP, bottom) if y is None else (y, y + _ROW)
    parts.append(
      f'<path class="mark" d="M{x:.1f} {top}V{low}" stroke="#d62728"'
      f' stroke-width="3"><title>{html.escape(text)}</title></path>'
    )
  parts += _make_x_axis(x_scale, bottom, 's')
  return _frame(title, parts, height, width)


class _Scale:
  """Maps numbers to places, and finds round numbers for its ticks."""

  def __init__(self, low, high, first, last):
    self.low = low
    self.high = high if high > low else low + 1
    self._first, self._last = first, last

  def at(self, number):
    part = (number - self.low) / (self.high - self.low)
    return self._first + part * (self._last - self._first)

  def find_ticks(self):
    """Returns some round numbers in its range, a list of float."""
    step = 10 ** math.floor(math.log10((self.high - self.low) / 4))
    for factor in (1, 2, 5, 10):
      if (self.high - self.low) / (step * factor) <= 5:
        break
    step *= factor
    first = math.ceil(self.low / step)
    last = math.floor(self.high / step)
    return [n * step for n in range(first, last + 1)]


def _make_axes(x_scale, y_scale, x_label):
  return [
    *_make_y_axis(y_scale),
    *_make_x_axis(x_scale, _HEIGHT - _BOTTOM, x_label),
  ]


def _make_x_axis(scale, bottom, label):
  parts = []
  for tick in scale.find_ticks():
    parts.append(_text(scale.at(tick), bottom + 13, _format(tick), 'middle'))
  middle = scale.at((scale.low + scale.high) / 2)
  return [*parts, _text(middle, bottom + 29, label, 'middle')]


def _make_y_axis(scale):
  parts = []
  for tick in scale.find_ticks():
    y = scale.at(tick)
    parts.append(
      f'<path d="M{_LEFT} {y:.1f}H{_WIDTH - _RIGHT}" stroke="#ddd"/>'
    )
    parts.append(_text(_LEFT - 5, y + 4, _format(tick), 'end'))
  return parts


def _format(number):
  for size, unit in ((1e9, 'G'), (1e6, 'M'), (1e3, 'k')):
    if abs(number) >= 10 * size or (size > 1e3 and abs(number) >= size):
      return f'{number / size:g}{unit}'
  return f'{number:.6g}'


def _text(x, y, text, anchor):
  return (
    f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{html.escape(text)}'
    '</text>'
  )


def _make_legend(series):
  """Returns the names of the lines, outside the SVG: there may be many."""
  names = ''.join(
    f'<span><b style="background:{COLOURS[i % len(COLOURS)]}"></b>'
    f'{html.escape(name)}</span>'
    for i, name in enumerate(series)
  )
  return f'<div class="legend">{names}</div>'


def _frame(title, parts, height, width=_WIDTH):
  return (
    f'<svg viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
    f' role="img" aria-label="{html.escape(title)}">'
    f'<text class="title" x="{_LEFT}" y="16">{html.escape(title)}</text>'
    f'{"".join(parts)}</svg>'
  )
