"""The tasks of a run as a table of `rich`, with a bar above it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from distmnist.common import cli
from distmnist.watching import table_text

if TYPE_CHECKING:
  from rich import console as console_lib

  from distmnist.watching import run_state

_COLOURS = {
  'training': 'green',
  'serving': 'green',
  'evaluating': 'green',
  'waiting': 'yellow',
  'starting': 'yellow',
  'ending': 'cyan',
  'ended': 'dim',
  'stopped': 'dim',
}
_BAR_WIDTH = 30


def make(
  logdir: str, state: run_state.RunState, num_rows: int, is_ascii: bool = False
) -> console_lib.Group:
  """Returns what `rich` can print.

  Args:
    num_rows: how many tasks fit; those that need a look come first.
    is_ascii: whether the terminal may lack all other characters: a
      longer substitute would spoil the lines that are drawn over.
  """
  from rich import console, table, text

  rows = state.make_rows()
  shown = choose_rows(rows, num_rows)
  heads, cells = table_text.make_cells(shown, state.unit)
  # 80 columns are enough.
  drawn = table.Table(box=None, padding=(0, 1, 0, 0), header_style='bold')
  for i, head in enumerate(heads):
    justify = 'left' if i < 2 else 'right'
    head = head.replace(' ', '\n')
    drawn.add_column(
      text.Text(head),  # A unit may have brackets.
      justify=justify,
      vertical='bottom',
      no_wrap=True,
      overflow='crop' if is_ascii else 'ellipsis',
    )
  for row, line in zip(shown, cells, strict=True):
    drawn.add_row(
      line[0],
      text.Text(line[1], _COLOURS.get(row.state, 'red')),
      *line[2:],
    )
  parts = [text.Text(_make_bar(state, *('=-' if is_ascii else '━─'))), drawn]
  if len(shown) < len(rows):
    parts.append(
      text.Text(
        f'and {len(rows) - len(shown)} more: {cli.name_command("status")}'
        f' --logdir={logdir}',
        'dim',
      )
    )
  return console.Group(*parts)


def choose_rows(
  rows: Sequence[run_state.Row], num_rows: int
) -> list[run_state.Row]:
  """Returns `num_rows` of `rows` in order, preferring those not at work."""

  def needs_look(row: run_state.Row) -> bool:
    return row.state not in ('training', 'serving', 'evaluating')

  first = sorted(rows, key=lambda row: not needs_look(row))[:num_rows]
  return [row for row in rows if row in first]


def _make_bar(state: run_state.RunState, full: str, empty: str) -> str:
  bar, text = '', table_text.describe_progress(state)
  step, last = state.step, state.last_step
  if step is not None and last is not None:  # Else only time ends it.
    done = round(_BAR_WIDTH * min(1.0, step / last))
    bar = full * done + empty * (_BAR_WIDTH - done) + ' '
  return bar + text
