"""Screens of a launcher: the lines of its tasks, and maybe a table.

The table of the tasks stands below the lines and is redrawn all the time.
`rich`, which comes with Keras, draws it, and is loaded only for that.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from absl import flags

from distmnist.common import console
from distmnist.common.names import CHIEF, LAUNCH
from distmnist.common.refusals import Refusal
from distmnist.launching import jobs, run_record
from distmnist.launching.screen import log_view, task_logs, terminal
from distmnist.storage import urls
from distmnist.watching import live_table, watched_run

if TYPE_CHECKING:
  import rich.console

FLAGS = flags.FLAGS

_LIVE_TABLE = flags.DEFINE_enum(
  'live_table',
  'auto',
  ['auto', 'on', 'off'],
  'Draw a table of all tasks below the lines of the run, twice a second. auto:'
  ' where stdout is a terminal and the run has a --logdir.',
)
_DRAW_SECS = 0.5
# The terminal lines kept for a line above the table, and for the lines of the
# table that are not a task.
_LINES_LEFT = 8


def make(
  logs_dir: str,
  tasks: Iterable[jobs.Task],
  show_logs: str,
  record: run_record.RunRecord | None = None,
) -> log_view.Screen:
  """Returns the Screen of `tasks`, on which our own lines are shown as well.

  Args:
    logs_dir: the folder of their logs.
    show_logs: 'chief' for its lines as they are, 'all' for the lines of every
      task, each after the task's name.
    record: has the log directory of the launch.
  """
  logs = {
    '' if show_logs == 'chief' else f'[{task.name}] ': task_logs.log_path(
      logs_dir, task
    )
    for task in tasks
    if show_logs == 'all' or task.name == CHIEF
  }
  logdir = (record and record.logdir) or ''
  # What a store has of a run is some seconds old, and each look costs money.
  is_here = bool(logdir) and not urls.is_remote(logdir)
  if is_here and _wants_table(_LIVE_TABLE.value):
    screen = TableScreen(logs, logdir)
  else:
    screen = log_view.Screen(logs)
  console.print_logs(screen.print_line)
  return screen


def _make_refusals(flag: str, value: str) -> tuple[Refusal, ...]:
  """Returns the rows of a flag that shows, at `value`, more than the chief."""
  return (
    Refusal(
      flag,
      lambda f: FLAGS[flag].value == value and f.launcher == 'kubernetes',
      ' is for launchers that see all tasks, and Kubernetes keeps their logs: '
      'leave it out (--apply shows the chief), and see kubectl logs',
    ),
    Refusal(
      flag,
      lambda f: FLAGS[flag].value == value and f.no_wait,
      lambda f: (
        f' is for a launcher that waits for the run, and with {f.no_wait} it '
        'does not: leave one of them out'
      ),
    ),
  )


# Facts: launcher, str; logdir, str or None, train's flag; no_wait, str or None,
# the flag for which the launcher only submits.
REFUSALS = (
  *_make_refusals('live_table', 'on'),
  *_make_refusals('show_logs', 'all'),
  Refusal(
    'live_table',
    lambda f: (
      FLAGS.live_table == 'on' and (not f.logdir or urls.is_remote(f.logdir))
    ),
    ' shows what the tasks write to a --logdir: give train one on this file '
    'system, after the --',
  ),
)


def _wants_table(wanted: str) -> bool:
  """Whether a table is drawn; `wanted` is the value of --live_table."""
  if wanted == 'auto':
    return sys.stdout.isatty() and os.environ.get('TERM') != 'dumb'
  return wanted == 'on'


class TableScreen(log_view.Screen):
  """A Screen with a table below it; `step` lines are in the table."""

  def __init__(
    self,
    logs: Mapping[str, str | os.PathLike[str]],
    logdir: str,
    console: rich.console.Console | None = None,
  ) -> None:
    """
    Args:
      logs: see log_view.Screen.
      console: by default that of the terminal.
    """
    super().__init__(logs)
    from rich import console as console_lib
    from rich import live

    self._console = console or console_lib.Console(force_terminal=True)
    self._run = watched_run.WatchedRun(logdir)
    self._next_draw = 0.0
    self._has_failed = False
    self._live = live.Live(
      console=self._console,
      auto_refresh=False,
      redirect_stdout=False,
      # If stderr goes elsewhere, errors must go there too.
      redirect_stderr=sys.stderr.isatty(),
    )
    self._live.start()

  def update(self) -> None:
    super().update()
    if time.monotonic() >= self._next_draw:
      self._draw()

  def finish(self) -> None:
    super().finish()
    self._draw()
    with terminal.may_close():
      self._live.stop()

  def print_line(self, text: str) -> None:
    if sys.stderr.isatty() or not self._live.is_started:
      # Through the table, which is redrawn below the line.
      log_view.print_line(text)
    else:
      with terminal.may_close():
        print(f'{LAUNCH}: {text}', file=sys.stderr, flush=True)

  def close_line(self) -> None:
    pass  # No line is ever open.

  def _draw(self) -> None:
    """Draws the table; one that cannot be drawn ends no run."""
    try:
      self._draw_table()
    except OSError:
      pass  # A folder that is away for a moment.
    except Exception as error:
      if not self._has_failed:
        self._has_failed = True
        reason = f'{type(error).__name__}: {error}'
        self.print_line(f'the table cannot be drawn: {reason}')
    self._next_draw = time.monotonic() + _DRAW_SECS

  def _draw_table(self) -> None:
    with contextlib.suppress(OSError):
      self._run.look()
    num_rows = max(4, self._console.height - _LINES_LEFT)
    is_ascii = self._console.options.ascii_only
    table = live_table.make(
      self._run.logdir, self._run.state, num_rows, is_ascii
    )
    with terminal.may_close():
      self._live.update(table, refresh=True)

  def _show_line(self, line: str) -> None:
    name = '' if '' in self._logs else line.partition('] ')[2]
    if not (name or line).startswith('step '):
      self._console.print(line, markup=False, highlight=False, soft_wrap=True)
