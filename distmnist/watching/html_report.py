"""report.html: a run on one page, which needs no network and no script.

Jinja2 fills report.html.jinja, and matplotlib draws the curves as SVG. Both are
of the extra `plots`, and imported only to draw.
"""

from __future__ import annotations

import base64
import collections
import io
import math
import pathlib
import re
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from distmnist.common import command_line, files
from distmnist.watching import metrics_file, run_state, table_text
from distmnist.watching.metrics_line import Line

if TYPE_CHECKING:
  import numpy as np

NAME = 'report.html'
_TEMPLATE = pathlib.Path(__file__).with_name('report.html.jinja')
# Of a longer run an evenly spread part: 10 million lines take seconds.
_NUM_SAMPLES = 50_000
_NUM_POINTS = 400  # Of a curve.
# Of the numbers in samples: title, field, job, x axis.
_CHARTS = (
  ('loss over time', 'loss', 'worker', 's'),
  ('examples/s of each worker', 'examples_per_sec', 'worker', 's'),
  ('staleness', 'staleness_mean', 'worker', 's'),
  ('MB/s into each ps', 'received_bytes_per_sec', 'ps', 's'),
  ('MB/s out of each ps', 'sent_bytes_per_sec', 'ps', 's'),
  ('cores of each task', 'cpu_cores', '', 's'),
  ('memory of each task, MB', 'rss_bytes', '', 's'),
)
_PUSHES = 'pushes by staleness', 'updates'
_WAITS = 'samples of ps in which a worker waited for a round', 's'
_STYLE: dict[Any, Any] = {
  **{'font.size': 8, 'axes.titlesize': 9, 'legend.fontsize': 7},
  **{'axes.grid': True, 'grid.color': '#ddd', 'lines.linewidth': 1.2},
  # Words stay words, and a $ in the name of a metric is no formula.
  **{'svg.fonttype': 'none', 'text.parse_math': False},
}


# What a chart is called, and what its x axis is.
_Chart = tuple[str, str]
# (x, y)s, with None between the lives of a task.
_Points = list[tuple[Any, Any] | None]


class History:
  """What all tasks did, from the first line of one on.

  Launches before are of a run whose lines were moved aside.

  Attributes:
    start: the time of that line, seconds since 1970.
    zero: the seconds from there to the first step; other times are after it.
    hosts, versions: where, and with what, tasks ran.
    lives: {(task, life): [first time, last time, last sample]}.
    events: (time, task or None, text, whether it is a fault or recovery).
    curves: {(title, x axis): {name: points (x, y), with None between lives}}.
    waited: {worker: samples of ps in which it waited for the end of a round}.
  """

  def __init__(self, lines: Iterable[Line]) -> None:
    self.start = 0.0
    self.zero: float | None = None
    self.hosts: set[str] = set()
    self.versions: dict[str, str] = {}
    self.lives: dict[tuple[str, str], list[Any]] = {}
    self.events: list[tuple[float, str | None, str, bool]] = []
    self.curves: dict[_Chart, dict[str, _Points]] = collections.defaultdict(
      lambda: collections.defaultdict(list)
    )
    self.waited: collections.Counter[str] = collections.Counter()
    for line in lines:
      is_of_task = line['task'] != metrics_file.LAUNCHER
      self.start = self.start or is_of_task * line['time']
      if line['kind'] == 'event' and self.start:
        self._take_event(line, line['time'] - self.start)
      elif is_of_task:
        self._take(line, line['time'] - self.start)
    self._begin_with_first_step()

  def _take_event(self, line: Line, secs: float) -> None:
    event, text = line['event'], line.get('text', '')
    task = line.get('about', line['task'])
    is_mark = event == 'ended' and line.get('code') not in (0, 130, 143)
    is_mark |= event == 'recovered'
    if event == 'stopping':
      self.events.append((secs, None, f'asked to stop by {text}', True))
    elif is_mark or event == 'wait':
      self.events.append((secs, task, f'{task}: {text}', is_mark))

  def _take(self, line: Line, secs: float) -> None:
    task, kind = line['task'], line['kind']
    if (task, line['life']) not in self.lives:
      for curves in self.curves.values():
        if task in curves:
          curves[task].append(None)
    life = self.lives.setdefault((task, line['life']), [secs, secs, {}])
    life[1] = secs
    if kind == 'start':
      self.hosts.add(line.get('host', '?'))
      self.versions |= line.get('versions') or {}
    elif kind == 'evaluation':
      for metric, y in line['metrics'].items():
        self._add((metric, 'step'), line['split'], line.get('step'), y)
    elif kind == 'means':
      # Beside those of validation and test, in one chart.
      for metric, y in line['metrics'].items():
        self._add((metric, 'step'), task, line['step'], y)
    elif kind == 'end' and not line['ok']:
      self.events.append((secs, task, f'{task}: {line["text"]}', True))
    elif kind == 'sample':
      life[2] = line
      if self.zero is None and line.get('local_steps'):
        self.zero = secs
      for worker in line.get('waiting') or ():
        self.waited[worker] += 1
        self._add(_WAITS, worker, secs, self.waited[worker])
      for title, field, job, axis in _CHARTS:
        if task.startswith(job):
          x, y = secs if axis == 's' else line.get('step'), line.get(field)
          if 'bytes' in field and y is not None:
            y /= 1e6
          self._add((title, axis), task, x, y)

  def _begin_with_first_step(self) -> None:
    """Makes all times those after the first step, if there is one."""
    self.zero = zero = self.zero or 0.0
    for life in self.lives.values():
      life[:2] = life[0] - zero, life[1] - zero
    self.events = [
      (secs - zero, task, text, is_mark)
      for secs, task, text, is_mark in self.events
    ]
    for (_, axis), curves in self.curves.items():
      for name, points in curves.items() if axis == 's' else ():
        curves[name] = [p and (p[0] - zero, p[1]) for p in points]

  def _add(self, chart: _Chart, name: str, x: Any, y: Any) -> None:
    if x is not None and y is not None:
      self.curves[chart][name].append((x, y))


def write(
  logdir: str,
  state: run_state.RunState,
  flag_changes: Iterable[tuple[int, str]] = (),
) -> str:
  """Writes the page of a run; returns its path.

  Args:
    state: how things stand there.
    flag_changes: (global step, what changed) of each life with other flags.

  Raises:
    ImportError: matplotlib or Jinja2 is not installed.
    OSError: it cannot be written.
  """
  import jinja2
  import matplotlib

  history = History(metrics_file.iterate(logdir, _NUM_SAMPLES))
  path = pathlib.Path(logdir, 'train.flags')
  flags = path.read_text('utf-8', 'replace') if path.exists() else ''
  environment = jinja2.Environment(autoescape=True)
  safe = environment.filters['safe']
  with matplotlib.rc_context(_STYLE):
    page = environment.from_string(_TEMPLATE.read_text('utf-8')).render(
      name=pathlib.Path(logdir).resolve().name,
      setup=_describe_setup(flags),
      said=table_text.describe_run(logdir, state),
      tasks=table_text.make_cells(state.make_rows(), state.unit),
      history=history,
      curves=safe(_draw_curves(history, state.unit)),
      lives=safe(_draw_lives(history)),
      totals=_make_totals(history, state.unit),
      flags=flags or 'none',
      flag_changes=flag_changes,
      begun=time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(history.start)),
    )
  with files.replacing(path := f'{logdir}/{NAME}') as file:
    file.write(page)
  return path


def _describe_setup(flags: str) -> str:
  """Returns what was trained how: 'sync_sgd, cnn on mnist, 1 ps, 2 workers'.

  Args:
    flags: those of the run, one a line; '' if they are not known.
  """

  def find(name: str) -> str | None:
    return command_line.find_value(flags.splitlines(), name)

  what = find('model'), find('dataset')
  if problem := find('problem'):
    parts = [find('strategy'), pathlib.Path(problem).name]
  else:
    parts = [find('strategy'), ' on '.join(filter(None, what))]
  for job, hosts in ('ps', find('ps_hosts')), ('worker', find('worker_hosts')):
    if hosts:
      number = len(hosts.split(','))
      plural = 's' if job == 'worker' and number > 1 else ''
      parts.append(f'{number} {job}{plural}')
  return ', '.join(filter(None, parts))


def _draw_curves(history: History, unit: str) -> str:
  """Returns all charts with curves as SVG elements, those over steps first."""
  for task, counts in _sum_staleness(history).items():
    history.curves[_PUSHES][task] = list(counts.items())
  drawn = []
  for (title, label), curves in history.curves.items():
    points = [p for found in curves.values() for p in found if p]
    if not any(y for _, y in points):
      continue  # Nobody waited, say.
    if (title, label) == _PUSHES and not any(x for x, _ in points):
      continue  # In lock-step: all lie on one line.
    figure, axes = _make_axes(4.9, 2.4)
    axes.set(title=title.replace('examples', unit), xlabel=label)
    workers = [name for name in curves if name.startswith('worker')]
    # Counts of each worker have no mean, nor has what a ps uses as well.
    has_mean = len(workers) > 1 and (title, label) not in (_PUSHES, _WAITS)
    has_mean &= not any(name.startswith('ps') for name in curves)
    has_many = len(curves) >= 10  # Their names would hide the curves.
    for name in sorted(curves, key=_order):
      is_thin = has_mean and name in workers
      style: dict[str, Any] = {}
      if is_thin:
        style |= {'linewidth': 0.5, 'alpha': 0.6}
      if is_thin and has_many:
        style['label'] = '_'  # No legend has it.
      _draw_curve(axes, _split(curves[name]), name, **style)
    if has_mean:
      found = [s for name in workers for s in _split(curves[name])]
      mean, name = _compute_mean(found), f'mean of {len(workers)} workers'
      axes.plot(*mean, label=name, color='black', linewidth=2)
    if label != 's':
      axes.xaxis.get_major_locator().set_params(integer=True)
    if has_mean or not has_many:
      axes.legend()
    drawn.append((label != 'step', len(drawn), _make_svg(figure, title)))
  return ''.join(svg for *_, svg in sorted(drawn))


def _sum_staleness(history: History) -> dict[str, collections.Counter[int]]:
  """Returns {worker: how many pushes had which staleness, in updates}."""
  sums: dict[str, collections.Counter[int]] = collections.defaultdict(
    collections.Counter
  )
  for (task, _), (_, _, last) in history.lives.items():
    for value, count in (last.get('staleness') or {}).items():
      sums[task][int(value)] += count
  return sums


def _split(points: _Points) -> list[list[tuple[Any, Any]]]:
  """Returns the points of each life, by x, at most _NUM_POINTS in all."""
  every = -(-len(points) // _NUM_POINTS)
  segments: list[list[tuple[Any, Any]]] = [[]]
  for point in points:
    if point is None:
      segments.append([])
    else:
      segments[-1].append(point)
  # With the last one of each.
  return [sorted(s)[::-1][::every][::-1] for s in segments if s]


def _draw_curve(
  axes: Any, segments: list[list[tuple[Any, Any]]], name: str, **style: Any
) -> None:
  """Draws the points of a task, without a line from one life to the next."""
  gap = (math.nan, math.nan)
  points = [point for segment in segments for point in (*segment, gap)][:-1]
  is_dotted = len(points) < 20 or any(len(s) == 1 for s in segments)
  # Those of validation and test would lie over each other at their points.
  label = f'{name} {points[0][1]:.4g}' if len(points) == 1 else name
  style = {'label': label} | style
  axes.plot(*zip(*points, strict=True), '.-' if is_dotted else '-', **style)


def _compute_mean(
  segments: list[list[tuple[Any, Any]]],
) -> tuple[np.ndarray, np.ndarray]:
  """Returns x and y of the mean of curves, nan where there is none."""
  import numpy as np

  ends = [x for segment in segments for x, _ in (segment[0], segment[-1])]
  x = np.linspace(min(ends), max(ends), _NUM_POINTS)
  drawn = [zip(*segment, strict=True) for segment in segments]
  found = np.stack([np.interp(x, xs, ys, np.nan, np.nan) for xs, ys in drawn])
  number = np.sum(~np.isnan(found), axis=0)
  return x, np.where(number, np.nansum(found, axis=0) / number.clip(1), np.nan)


def _draw_lives(history: History) -> str:
  tasks = sorted({task for task, _ in history.lives}, key=_order)
  figure, axes = _make_axes(9.8, 0.8 + 0.22 * len(tasks))
  for (task, _), (first, last, _) in history.lives.items():
    axes.barh(tasks.index(task), last - first, 0.6, first, color='#9ecae1')
  for secs, task, _, is_mark in history.events:
    if is_mark:
      where = [tasks.index(task)] if task in tasks else [0, len(tasks) - 1]
      ends = where[0] - 0.45, where[-1] + 0.45
      axes.plot([secs, secs], ends, color='#d62728', linewidth=3)
  axes.set_yticks(range(len(tasks)), tasks)
  axes.set(title='lives of each task', xlabel='s')
  axes.invert_yaxis()
  return _make_svg(figure, 'lives')


def _make_axes(width: float, height: float) -> tuple[Any, Any]:
  """Returns a figure of so many inches, and its axes."""
  from matplotlib import figure

  made = figure.Figure((width, height))
  left, right, low, high = 0.7 / width, 0.1 / width, 0.45 / height, 0.3 / height
  return made, made.add_axes((left, low, 1 - left - right, 1 - low - high))


def _make_svg(figure: Any, title: str) -> str:
  """Returns a figure as an SVG element, and a link that saves it as a file.

  Without what names an address.
  """
  file = io.StringIO()
  about = dict.fromkeys(('Creator', 'Date', 'Format', 'Type'))
  figure.savefig(file, format='svg', metadata=about)
  svg = file.getvalue()[file.getvalue().index('<svg') :]
  data = base64.b64encode(svg.encode()).decode()
  name = re.sub(r'\W+', '_', title)
  return (
    f'<figure>{svg}<a download="{name}.svg" '
    f'href="data:image/svg+xml;base64,{data}">save as SVG</a></figure>'
  )


def _make_totals(
  history: History, unit: str
) -> tuple[list[str], list[list[str]]]:
  """Returns the heads and the rows of what each task did in all its lives."""
  columns = {'local_steps': 'local steps', 'examples': unit}
  columns['cpu_secs'] = 'CPU s'
  sizes = {'bytes_pulled': 'MB pulled', 'bytes_pushed': 'MB pushed'}
  sizes |= {'bytes_sent': 'MB sent', 'bytes_received': 'MB received'}
  sums = collections.defaultdict(collections.Counter)
  for (task, _), (_, _, last) in history.lives.items():
    # Of a worker, as in report.json, what its loop has moved.
    whole = {
      'bytes_sent': last.get('sent_bytes'),
      'bytes_received': last.get('received_bytes'),
    }
    last = whole | last
    sums[task].update({n: last.get(n) or 0 for n in [*columns, *sizes]})
  rows = [
    [
      *(task, *(f'{total[name]:,.0f}' for name in columns)),
      *(f'{total[name] / 1e6:,.1f}' for name in sizes),
    ]
    for task, total in sorted(sums.items(), key=lambda found: _order(found[0]))
  ]
  return ['task', *columns.values(), *sizes.values()], rows


def _order(name: str) -> tuple[int, str]:
  return len(name), name  # ps 0, worker 2, worker 10.
