"""A run as its log directory shows it, for programs that only watch it."""

from __future__ import annotations

import time

from distmnist.common import owner_file
from distmnist.storage import disk
from distmnist.watching import metrics_file, run_state


class WatchedRun:
  """What is known of a run since the last `look`.

  Attributes:
    state: how things stood then.
  """

  def __init__(self, logdir: str) -> None:
    self.logdir = logdir
    self.state = run_state.RunState()
    self._clock_ahead: float | None = None

  def look(self) -> run_state.RunState:
    """Looks at how things stand now; returns `state`, a new one."""
    lines, written = metrics_file.read_state(self.logdir)
    self.state = run_state.RunState().take(lines)
    self.state.written = written
    is_silent = any(row.is_silent for row in self.state.make_rows())
    if is_silent and self._clock_ahead is None:
      self._clock_ahead = measure_clock(self.logdir)
    self.state.clock_ahead = self._clock_ahead
    return self.state

  def find_left(self) -> list[str]:
    """Returns the names of what still runs.

    A launcher without live tasks that has not said how it ended was killed.
    What it had started without a sign of life has ended with it.
    """
    rows = self.state.make_rows()
    left = [row.task for row in rows if row.is_live]
    launcher = self.state.launcher
    if launcher and not self.state.has_no_launcher:
      is_starting = any(row.state == 'starting' for row in rows)
      is_here = owner_file.is_alive_here(launcher.get('process', {}))
      if left or is_starting or is_here:
        left.append('the launcher')
    return left


def measure_clock(logdir: str) -> float | None:
  """Returns by how many seconds the clock here is ahead of the file server's.

  None if this process may not write there.
  """
  try:
    server = disk.see_now(logdir)
  except OSError:
    return None
  return time.time() - server
