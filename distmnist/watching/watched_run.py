"""A run as its log directory shows it, for programs that only watch it."""

import time

from distmnist.common import owner_file
from distmnist.storage import disk
from distmnist.watching import metrics_file, run_state


class WatchedRun:
  """What is known of a run, kept up to date by `look`.

  Attributes:
    logdir: str.
    state: run_state.RunState.
  """

  def __init__(self, logdir, has_all=False):
    """
    Args:
      logdir: str.
      has_all: bool, whether `read_new` is to return every line; see
        metrics_file.Follower.
    """
    self.logdir = logdir
    self.state = run_state.RunState()
    self._has_all = has_all
    self._follower = metrics_file.Follower(logdir, has_all)
    self._clock_ahead = None

  def look(self):
    """Takes in the lines since the last look; returns `state`."""
    self._take(self._follower.iterate_new())
    return self.state

  def read_new(self):
    """Takes in the lines since the last look; returns them, a list of dict."""
    lines = self._follower.read_new()
    self._take(lines)
    return lines

  def _take(self, lines):
    self.state.take(lines)
    if self._follower.has_lost:
      again = metrics_file.Follower(self.logdir, self._has_all)
      self.state = run_state.RunState().take(again.iterate_new())
    self.state.written = self._follower.written
    is_silent = any(row.is_silent for row in self.state.make_rows())
    if is_silent and self._clock_ahead is None:
      self._clock_ahead = measure_clock(self.logdir)
    self.state.clock_ahead = self._clock_ahead

  @property
  def is_good(self):
    """Whether everything that has ended ended well."""
    if self.state.launcher_end:
      return self.state.launcher_end['ok']
    states = {row.state for row in self.state.make_rows()}
    return not states & {'failed', 'killed', 'gone'}

  def find_left(self):
    """Returns the names of what still runs, a list of str.

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


def measure_clock(logdir):
  """Returns by how much the clock of this host is ahead of the file server's.

  Returns:
    float, seconds; None if this process may not write there.
  """
  try:
    server = disk.see_now(logdir)
  except OSError:
    return None
  return time.time() - server
