"""The tasks of a run as a plain text table, for a screen, a file or a pipe."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from distmnist.common.names import SPLITS
from distmnist.storage import urls

if TYPE_CHECKING:
  from distmnist.watching import run_state


def make_cells(
  rows: Sequence[run_state.Row], unit: str
) -> tuple[list[str], list[list[str]]]:
  """Returns the heads and the cells of a table.

  Args:
    unit: what examples are called.
  """
  heads = ['task', 'state', 'step', f'{unit}/s', 'staleness', 'in MB/s']
  heads += ['out MB/s', 'memory MB', 'restarts']
  return heads, [
    [
      row.task,
      row.state,
      _format(row.step, 'd'),
      _format(row.examples_per_sec, ',.0f'),
      _format(row.staleness, '.2f'),
      _format(row.received_per_sec, '.2f', 1e6),
      _format(row.sent_per_sec, '.2f', 1e6),
      _format(row.rss_bytes, ',.0f', 1e6),
      str(row.restarts),
    ]
    for row in rows
  ]


def _format(value: float | None, form: str, scale: float | None = None) -> str:
  if value is None:
    return '-'
  return format(value / scale if scale else value, form)


def format_table(rows: Sequence[run_state.Row], unit: str) -> str:
  """Returns the table as several lines; see `make_cells`."""
  heads, cells = make_cells(rows, unit)
  widths = [max(map(len, column)) for column in zip(heads, *cells, strict=True)]
  return '\n'.join(
    '  '.join(
      cell.ljust(width) if i < 2 else cell.rjust(width)
      for i, (cell, width) in enumerate(zip(line, widths, strict=True))
    ).rstrip()
    for line in [heads, *cells]
  )


def describe_run(logdir: str, state: run_state.RunState) -> str:
  """Returns a line about a run as a whole."""
  rows = state.make_rows()
  parts = [_describe_stage(state, rows)]
  if state.step is not None:
    step, last = state.step, state.last_step
    # Others may have gone beyond the end.
    parts.append(
      f'step {min(step, last)} of {last}' if last else f'step {step}'
    )
    parts[-1] += _format_left(state, ', ')
  for split in SPLITS:
    if line := state.evaluations.get(split):
      found = format_metrics(line['metrics'])
      parts.append(f'{split} {found} at step {line["step"]}')
  if launcher := state.launcher:
    parts.append(
      f'started by the launcher {launcher.get("launcher", "")}, process '
      f'{launcher.get("pid", "?")} on {launcher.get("host", "?")}'
    )
  return f'{urls.tidy(logdir)}: {"; ".join(parts)}'


def describe_progress(state: run_state.RunState) -> str:
  """Returns how far a run is, in a few words; see `describe_run`."""
  if state.step is None:
    return 'starting'
  step = f'step {state.step}'
  if state.last_step:
    step = f'step {min(state.step, state.last_step)}/{state.last_step}'
  step += _format_left(state, '  ')
  for split in SPLITS:
    if line := state.evaluations.get(split):
      step += f'  {split} {format_metrics(line["metrics"])}'
  return step


def _format_left(state: run_state.RunState, separator: str) -> str:
  secs = state.find_secs_left()
  return f'{separator}{format_secs(secs)} left' if secs else ''


def format_secs(secs: float) -> str:
  """Returns seconds as 34 s, 12 min, 5 h or 3 days."""
  for size, unit in ((86400, 'days'), (3600, 'h'), (60, 'min')):
    if secs >= 2 * size:
      return f'{secs / size:.0f} {unit}'
  return f'{secs:.0f} s'


def format_metrics(metrics: Mapping[str, float | None]) -> str:
  """Returns {name: number or None} as one line, such as 'accuracy 0.9664'."""
  return ', '.join(
    f'{name} {"-" if value is None else format(value, ".4g")}'
    for name, value in metrics.items()
  )


def _describe_stage(
  state: run_state.RunState, rows: Sequence[run_state.Row]
) -> str:
  num_live = sum(row.is_live for row in rows)
  # Tasks may be kept going by hand after their launcher has ended.
  if num_live:
    return f'{num_live} of {len(rows)} tasks run'
  if state.launcher_end:
    code = state.launcher_end.get('code', 0)
    known = {0: 'ended', 129: 'stopped', 130: 'stopped', 143: 'stopped'}
    return known.get(code, f'failed with exit code {code}')
  states = {row.state for row in rows}
  return states.pop() if len(states) == 1 else 'no task runs'
