"""Shows a training in a notebook cell: its lines and a growing curve."""

import sys
import time

_SECS = 1.0  # Between two redraws.


def make_on_line(curve):
  """Returns callable(line) that prints it, and draws if a cell can show it.

  Args:
    curve: curve.Curve, which has already taken the line.
  """
  ipython = sys.modules.get('IPython')
  shell = ipython.get_ipython() if ipython else None
  if not hasattr(shell, 'kernel'):  # Not a notebook.
    return print
  try:
    import matplotlib  # noqa: F401, PLC0415  The extra `plots`.
  except ImportError:
    return print
  return _Cell(curve).take


class _Cell:
  """A picture in the cell, redrawn at most once a second."""

  def __init__(self, curve):
    self._curve = curve
    self._handle = None
    self._drawn_secs = -_SECS
    self._num_drawn = 0

  def take(self, line):
    print(line)
    num_points = len(self._curve.steps)
    is_due = time.monotonic() - self._drawn_secs >= _SECS
    is_last = line.startswith(('total time', 'report'))
    if num_points > max(1, self._num_drawn) and (is_due or is_last):
      self._draw()
      self._num_drawn = num_points
      self._drawn_secs = time.monotonic()

  def _draw(self):
    figure = self._curve.plot().figure
    if self._handle is None:
      display = sys.modules['IPython'].display.display
      self._handle = display(figure, display_id=True)
    else:
      self._handle.update(figure)
