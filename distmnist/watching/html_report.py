"""report.html: a run on one page, drawn without a network or a script."""

import html
import itertools
import os
import time

from distmnist.common import files
from distmnist.storage import paths
from distmnist.watching import (
  charts,
  metrics_file,
  run_history,
  run_state,
  table_text,
  watched_run,
)

NAME = 'report.html'
_STYLE = """
body { font: 14px/1.45 system-ui, sans-serif; margin: 24px; color: #222;
  max-width: 1000px }
h1 { font-size: 20px } h2 { font-size: 16px; margin-top: 28px }
svg text { font-size: 11px; fill: #444 } svg .title { font-weight: 600 }
.charts { display: flex; flex-wrap: wrap; gap: 16px } figure { margin: 0 }
.legend { font-size: 11px; max-width: 460px }
.legend span { margin-right: 10px; white-space: nowrap }
.legend b { display: inline-block; width: 10px; height: 3px; margin-right: 4px;
  vertical-align: middle }
table { border-collapse: collapse; font-size: 13px }
td, th { padding: 2px 10px; border-bottom: 1px solid #ddd; text-align: right }
td:first-child, th:first-child { text-align: left }
pre { background: #f6f6f6; padding: 10px; overflow-x: auto; font-size: 12px }
"""


def write(logdir):
  """Writes the page of a run; returns its path (str), or None without a run.

  Raises:
    OSError: it cannot be written.
  """
  follower = metrics_file.Follower(logdir, has_all=False)
  lines = follower.iterate_new()
  first = next(lines, None)
  if not first:
    return None
  lines = itertools.chain([first], lines)
  path = os.path.join(logdir, NAME)
  flags, ahead = _read_flags(logdir), watched_run.measure_clock(logdir)
  page = make(logdir, lines, flags, follower.written, ahead)
  with files.replacing(path) as file:
    file.write(page)
  return path


def make(logdir, lines, flags, written=None, clock_ahead=None):
  """Returns the page (str).

  Args:
    logdir: str.
    lines: iterable of dict by time, from metrics_file.Follower; not empty.
    flags: str, the flags of the run, one a line.
    written: {task: time}, and
    clock_ahead: float, as run_state.RunState has them.
  """
  state = run_state.RunState()
  state.written, state.clock_ahead = written or {}, clock_ahead

  def take():
    for line in lines:
      state.take([line])
      yield line

  history = run_history.RunHistory(take())
  name = os.path.basename(os.path.abspath(logdir))
  parts = [
    f'<h1>{_escape(name)}</h1>',
    f'<p>{_escape(table_text.describe_run(logdir, state))}</p>',
    _make_table(*table_text.make_cells(state.make_rows(), state.unit)),
    _describe_clocks(history),
    '<h2>Curves</h2>',
    _make_figures(_make_curves(history, state.unit)),
    *_make_staleness(history),
    *_make_times(history),
    *_make_waits(history),
    '<h2>Bytes and work</h2>',
    _make_totals(history, state.unit),
    '<h2>Flags</h2>',
    f'<pre>{_escape(flags)}</pre>',
    '<h2>Versions</h2>',
    f'<p>{_escape(_describe_versions(history))}</p>',
  ]
  return (
    '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
    f'<title>{_escape(name)}</title><style>{_STYLE}</style></head><body>\n'
    + '\n'.join(part for part in parts if part)
    + '\n</body></html>\n'
  )


def _make_curves(history, unit):
  """Returns the list of charts of numbers over time or steps."""
  costs = history.find_curves('cost', 'worker', 'step')
  found = [charts.make_lines('cost', costs, 'step')]
  for metric, splits in history.find_evaluations().items():
    found.append(charts.make_lines(metric, splits, 'step'))
  for title, name, job in (
    ('cost over time', 'cost', 'worker'),
    (f'{unit}/s of each worker', 'examples_per_sec', 'worker'),
    ('staleness', 'staleness_mean', 'worker'),
    ('bytes/s into each ps', 'received_bytes_per_sec', 'ps'),
    ('bytes/s out of each ps', 'sent_bytes_per_sec', 'ps'),
    ('workers that wait for a round', 'waiting', 'ps'),
    ('cores of each worker', 'cpu_cores', 'worker'),
    ('cores of each ps', 'cpu_cores', 'ps'),
    ('memory of each worker, bytes', 'rss_bytes', 'worker'),
    ('memory of each ps, bytes', 'rss_bytes', 'ps'),
  ):
    if name != 'waiting' or history.find_who_waited():
      curves = history.find_curves(name, job)
      found.append(charts.make_lines(title, curves, 's'))
  return found


def _make_staleness(history):
  if not history.staleness:
    return []
  found = [
    charts.make_bars(f'staleness of {worker}', counts, 'updates')
    for worker, counts in sorted(history.staleness.items())
  ]
  return ['<h2>Staleness</h2>', _make_figures(found)]


def _make_times(history):
  """Returns the lives of all tasks, and what broke them."""
  text = '; '.join(f'{when:.0f} s: {what}' for _, when, what in history.marks)
  return [
    '<h2>Faults and recoveries</h2>',
    charts.make_spans(
      'lives of each task', history.lives, history.marks, history.num_secs
    ),
    f'<p>{_escape(text or "none")}</p>',
  ]


def _make_waits(history):
  """Returns who waited for whom, as far as is known."""
  pairs = history.find_who_waited()
  parts = ['<h2>Who waited for whom</h2>']
  if pairs:
    names = sorted({name for pair in pairs for name in pair})
    rows = [
      [who, *(f'{100 * pairs.get((who, whom), 0):.0f} %' for whom in names)]
      for who in names
    ]
    parts.append(
      '<p>Of the samples in which a worker waited for the end of a round: how '
      "often the row's worker waited while the column's did not.</p>"
    )
    parts.append(_make_table(['', *names], rows))
  said = [f'{when:.0f} s, {who}: {text}' for when, who, text in history.waits]
  if said:
    parts.append(f'<pre>{_escape(chr(10).join(said[:200]))}</pre>')
  if not (pairs or said):
    parts.append('<p>No wait was long enough to be logged.</p>')
  return parts


def _make_totals(history, unit):
  heads = ['task', 'local steps', unit, 'MB pulled', 'MB pushed', 'MB sent']
  heads += ['MB received', 'CPU s']
  rows = []
  for task, total in history.totals.items():
    numbers = [total[n] for n in ('local_steps', 'examples')]
    sizes = 'bytes_pulled', 'bytes_pushed', 'sent_bytes', 'received_bytes'
    rows.append(
      [
        task,
        *(f'{n:,}' if n else '-' for n in numbers),
        *(f'{total[n] / 1e6:,.1f}' for n in sizes),
        f'{total["cpu_secs"]:,.1f}',
      ]
    )
  return _make_table(heads, rows)


def _make_table(heads, rows):
  head = ''.join(f'<th>{_escape(x)}</th>' for x in heads)
  body = ''.join(
    f'<tr>{"".join(f"<td>{_escape(x)}</td>" for x in row)}</tr>' for row in rows
  )
  return f'<table><tr>{head}</tr>{body}</table>'


def _make_figures(found):
  figures = ''.join(f'<figure>{chart}</figure>' for chart in found if chart)
  return f'<div class="charts">{figures}</div>'


def _find_hosts(history):
  return sorted({line['host'] for line in history.starts})


def _describe_clocks(history):
  """Returns what to know of the times of tasks on several hosts, or ''."""
  if len(hosts := _find_hosts(history)) < 2:
    return ''
  return (
    f'<p>The times of a task are by the clock of its host, one of '
    f'{_escape(", ".join(hosts))}: if a clock is wrong, what its tasks did is '
    'shown too early or too late.</p>'
  )


def _describe_versions(history):
  found = {}
  for line in history.starts:
    found |= line.get('versions') or {}
  hosts = _find_hosts(history)
  begun = time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(history.start))
  versions = ', '.join(f'{name} {found[name]}' for name in sorted(found))
  return f'{versions}; on {", ".join(hosts)}; begun {begun}'


def _read_flags(logdir):
  try:
    path = os.path.join(logdir, 'train.flags')
    return paths.read_bytes(path).decode(errors='replace')
  except OSError:
    return '(not kept)'


def _escape(text):
  return html.escape(str(text), quote=True)
