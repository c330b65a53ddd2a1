"""A training in a notebook cell: its lines, and a learning curve that grows."""

from __future__ import annotations

import contextlib
import re
import sys
import threading
from typing import Any

from distmnist.watching import learning_curve, table_text, watched_run

_SECS = 1.0  # Between two redraws.
_CLOSE_SECS = 10.0  # The most that an end waits for one.
_STEP = re.compile(r'step \d+(/\d+)?  ')


class Cell:
  """The output of the cell that started a training; elsewhere, plain lines.

  A picture of the curve is redrawn once a second, in a thread of its own, while
  the run is beyond what it shows; its title says how far the run is.
  """

  def __init__(self, logdir: str | None, curve: learning_curve.Curve) -> None:
    """
    Args:
      logdir: of the run; None, or a place that has no metrics, has no picture.
      curve: of the run.
    """
    self._curve = curve
    self._handle: Any = None  # Of what IPython displays.
    self._has_ended = threading.Event()
    self._thread: threading.Thread | None = None
    if logdir and _can_show():
      run = watched_run.WatchedRun(logdir)
      self._thread = threading.Thread(
        target=self._follow, args=[run], daemon=True
      )
      self._thread.start()

  def take(self, line: str) -> None:
    """Prints a line, unless a picture says how far the run is."""
    if not (self._handle and _STEP.match(line)):
      print(line)

  def close(self) -> None:
    """Draws the curve for the last time."""
    if self._thread:
      self._has_ended.set()
      self._thread.join(_CLOSE_SECS)

  def _follow(self, run: watched_run.WatchedRun) -> None:
    is_last = False
    while not is_last:
      is_last = self._has_ended.wait(_SECS)
      # A folder that is away for a moment, or a notebook that is closed.
      with contextlib.suppress(Exception):
        if self._curve.look() or is_last:
          self._show(run)

  def _show(self, run: watched_run.WatchedRun) -> None:
    if len(self._curve.find_points()) < 2:
      return  # One point is not yet a curve.
    display = sys.modules['IPython'].display
    said = table_text.describe_progress(run.look())
    said = f'epoch {self._curve.epoch}  {said}'
    picture = display.Image(data=self._curve.draw(said), format='png')
    if self._handle is None:
      self._handle = display.display(picture, display_id=True)
    else:
      self._handle.update(picture)


def _can_show() -> bool:
  """Whether this is a notebook, and there is what draws."""
  ipython = sys.modules.get('IPython')
  shell = ipython.get_ipython() if ipython else None
  if not hasattr(shell, 'kernel'):
    return False
  try:
    import matplotlib  # noqa: F401, PLC0415  The extra `plots`.
  except ImportError:
    return False
  return True
