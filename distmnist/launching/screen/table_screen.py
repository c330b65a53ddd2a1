"""The lines of a run above a table of its tasks that is redrawn all the time.

`rich`, which comes with Keras, draws the table, and is loaded only for that.
"""

import contextlib
import sys
import time

from distmnist.common.names import LAUNCH
from distmnist.launching.screen import log_view, terminal
from distmnist.watching import live_table, watched_run

_DRAW_SECS = 0.5
# The terminal lines kept for a line above the table, and for the lines of the
# table that are not a task.
_LINES_LEFT = 8


class TableScreen(log_view.Screen):
  """A Screen with a table below it; `step` lines are in the table."""

  def __init__(self, logs, logdir, console=None):
    """
    Args:
      logs: see log_view.Screen.
      logdir: str, of the run.
      console: rich.console.Console; that of the terminal by default.
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

  def update(self):
    super().update()
    if time.monotonic() >= self._next_draw:
      self._draw()

  def finish(self):
    super().finish()
    self._draw()
    with terminal.may_close():
      self._live.stop()

  def print_line(self, text):
    if sys.stderr.isatty() or not self._live.is_started:
      # Through the table, which is redrawn below the line.
      log_view.print_line(text)
    else:
      with terminal.may_close():
        print(f'{LAUNCH}: {text}', file=sys.stderr, flush=True)

  def close_line(self):
    pass  # No line is ever open.

  def _draw(self):
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

  def _draw_table(self):
    with contextlib.suppress(OSError):
      self._run.look()
    num_rows = max(4, self._console.height - _LINES_LEFT)
    is_ascii = self._console.options.ascii_only
    table = live_table.make(
      self._run.logdir, self._run.state, num_rows, is_ascii
    )
    with terminal.may_close():
      self._live.update(table, refresh=True)

  def _show_line(self, line):
    name = '' if '' in self._logs else line.partition('] ')[2]
    if not (name or line).startswith('step '):
      self._console.print(line, markup=False, highlight=False, soft_wrap=True)
