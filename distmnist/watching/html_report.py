"""report.html: a run on one page, which needs no network and no script.

Jinja2 fills report.html.jinja, and matplotlib draws the curves as SVG. Both are
of the extra `plots`, and imported only to draw.
"""

import collections
import io
import pathlib
import time
from collections.abc import Iterable
from typing import Any

from distmnist.common import files
from distmnist.watching import metrics_file, run_state, table_text

NAME = 'report.html'
_TEMPLATE = pathlib.Path(__file__).with_name('report.html.jinja')
# Of a longer run an evenly spread part: 10 million lines take seconds.
_NUM_SAMPLES = 50_000
_NUM_POINTS = 400  # Of a curve.
# Of the numbers in samples: title, field, job, x axis.
_CHARTS = (
  ('loss', 'loss', 'worker', 'step'),
  ('loss over time', 'loss', 'worker', 's'),
  ('examples/s of each worker', 'examples_per_sec', 'worker', 's'),
  ('staleness', 'staleness_mean', 'worker', 's'),
  ('bytes/s into each ps', 'received_bytes_per_sec', 'ps', 's'),
  ('bytes/s out of each ps', 'sent_bytes_per_sec', 'ps', 's'),
  ('cores of each task', 'cpu_cores', '', 's'),
  ('memory of each task, bytes', 'rss_bytes', '', 's'),
)
_PUSHES = 'pushes by staleness', 'updates'
_WAITS = 'samples of ps in which a worker waited for a round', 's'
_STYLE = {
  **{'font.size': 8, 'axes.titlesize': 9, 'legend.fontsize': 7},
  **{'axes.grid': True, 'grid.color': '#ddd', 'lines.linewidth': 1.2},
  # Words stay words, and a $ in the name of a metric is no formula.
  **{'svg.fonttype': 'none', 'text.parse_math': False},
}


class History:
  """What all tasks did, from the first line of one on.

  Launches before are of a run whose lines were moved aside.

  Attributes:
    start: the time of that line, seconds since 1970; other times are after it.
    hosts, versions: where, and with what, tasks ran.
    lives: {(task, life): [first time, last time, last sample]}.
    events: (time, task or None, text, whether it is a fault or recovery).
    curves: {(title, x axis): {name: points (x, y)}}.
    waited: {worker: samples of ps in which it waited for the end of a round}.
  """

  def __init__(self, lines: Iterable[dict]):
    self.start, self.hosts, self.versions = 0.0, set(), {}
    self.lives, self.events = {}, []
    self.curves = collections.defaultdict(lambda: collections.defaultdict(list))
    self.waited = collections.Counter()
    for line in lines:
      is_of_task = line['task'] != metrics_file.LAUNCHER
      self.start = self.start or is_of_task * line['time']
      if line['kind'] == 'event' and self.start:
        self._take_event(line, line['time'] - self.start)
      elif is_of_task:
        self._take(line, line['time'] - self.start)

  def _take_event(self, line: dict, secs: float) -> None:
    event, text = line['event'], line.get('text', '')
    task = line.get('about', line['task'])
    is_mark = event == 'ended' and line.get('code') not in (0, 130, 143)
    is_mark |= event == 'recovered'
    if event == 'stopping':
      self.events.append((secs, None, f'asked to stop by {text}', True))
    elif is_mark or event == 'wait':
      self.events.append((secs, task, f'{task}: {text}', is_mark))

  def _take(self, line: dict, secs: float) -> None:
    task, kind = line['task'], line['kind']
    life = self.lives.setdefault((task, line['life']), [secs, secs, {}])
    life[1] = secs
    if kind == 'start':
      self.hosts.add(line.get('host', '?'))
      self.versions |= line.get('versions') or {}
    elif kind == 'evaluation':
      for metric, y in line['metrics'].items():
        self._add((metric, 'step'), line['split'], line.get('step'), y)
    elif kind == 'end' and not line['ok']:
      self.events.append((secs, task, f'{task}: {line["text"]}', True))
    elif kind == 'sample':
      life[2] = line
      for worker in line.get('waiting') or ():
        self.waited[worker] += 1
        self._add(_WAITS, worker, secs, self.waited[worker])
      for title, field, job, axis in _CHARTS:
        if task.startswith(job):
          x = secs if axis == 's' else line.get('step')
          self._add((title, axis), task, x, line.get(field))
      # Beside those of validation and test, in one chart.
      for metric, y in (line.get('metrics') or {}).items():
        self._add((metric, 'step'), task, line.get('step'), y)

  def _add(self, chart: tuple, name: str, x: Any, y: Any) -> None:
    if x is not None and y is not None:
      self.curves[chart][name].append((x, y))


def write(
  logdir: str,
  state: run_state.RunState,
  flag_changes: Iterable[tuple[int, str]] = (),
) -> str:
  """Writes the page of a run; returns its path.

  Args:
    logdir: its folder.
    state: how things stand there.
    flag_changes: (global step, what changed) of each life with other flags.

  Raises:
    ImportError: matplotlib or Jinja2 is not installed.
    OSError: it cannot be written.
  """
  import jinja2
  import matplotlib

  history = History(metrics_file.iterate(logdir, _NUM_SAMPLES))
  flags = pathlib.Path(logdir, 'train.flags')
  environment = jinja2.Environment(autoescape=True)
  safe = environment.filters['safe']
  with matplotlib.rc_context(_STYLE):
    page = environment.from_string(_TEMPLATE.read_text('utf-8')).render(
      name=pathlib.Path(logdir).resolve().name,
      said=table_text.describe_run(logdir, state),
      tasks=table_text.make_cells(state.make_rows(), state.unit),
      history=history,
      curves=safe(_draw_curves(history, state.unit)),
      lives=safe(_draw_lives(history)),
      totals=_make_totals(history, state.unit),
      flags=flags.read_text('utf-8', 'replace') if flags.exists() else 'none',
      flag_changes=flag_changes,
      begun=time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(history.start)),
    )
  with files.replacing(path := f'{logdir}/{NAME}') as file:
    file.write(page)
  return path


def _draw_curves(history: History, unit: str) -> str:
  """Returns all charts with curves as SVG elements, those over steps first."""
  for task, counts in _sum_staleness(history).items():
    history.curves[_PUSHES][task] = list(counts.items())
  drawn = []
  for (title, label), curves in history.curves.items():
    if not any(y for points in curves.values() for _, y in points):
      continue  # Nobody waited, say.
    figure, axes = _make_axes(4.9, 2.4)
    axes.set(title=title.replace('examples', unit), xlabel=label)
    for name in sorted(curves, key=_order):
      points = sorted(curves[name])[::-1]
      points = points[:: -(-len(points) // _NUM_POINTS)]  # With the last one.
      style = '.-' if len(points) < 20 else '-'
      axes.plot(*zip(*points, strict=True), style, label=name)
    if len(curves) < 10:  # More would hide them.
      axes.legend()
    drawn.append((label != 'step', len(drawn), _make_svg(figure)))
  return ''.join(svg for *_, svg in sorted(drawn))


def _sum_staleness(history: History) -> dict[str, collections.Counter]:
  """Returns {worker: how many pushes had which staleness, in updates}."""
  sums = collections.defaultdict(collections.Counter)
  for (task, _), (_, _, last) in history.lives.items():
    for value, count in (last.get('staleness') or {}).items():
      sums[task][int(value)] += count
  return sums


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
  return _make_svg(figure)


def _make_axes(width: float, height: float) -> tuple[Any, Any]:
  """Returns a figure of so many inches, and its axes."""
  from matplotlib import figure

  made = figure.Figure((width, height))
  left, right, low, high = 0.7 / width, 0.1 / width, 0.45 / height, 0.3 / height
  return made, made.add_axes((left, low, 1 - left - right, 1 - low - high))


def _make_svg(figure: Any) -> str:
  """Returns a figure as an SVG element, without what names an address."""
  file = io.StringIO()
  about = dict.fromkeys(('Creator', 'Date', 'Format', 'Type'))
  figure.savefig(file, format='svg', metadata=about)
  return file.getvalue()[file.getvalue().index('<svg') :]


def _make_totals(history: History, unit: str) -> tuple[list, list]:
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
