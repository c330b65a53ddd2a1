"""A training in a notebook cell: its lines and a growing curve of its loss."""

import io
import re
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
  from matplotlib.axes import Axes

_SECS = 1.0  # Between two redraws.
_STEP = re.compile(r'(?:worker 0: )?step (\d+)/\d+ .*\bloss (\S+)')


def make_on_line(curve: 'Curve') -> Callable[[str], object]:
  """Returns what prints a line, and draws the curve if a cell can show it.

  The curve has to take each line first.
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

  def __init__(self, curve: 'Curve'):
    self._curve = curve
    self._handle = None
    self._drawn_secs = -_SECS
    self._num_drawn = 0

  def take(self, line: str) -> None:
    print(line)
    num_points = len(self._curve.steps)
    is_due = time.monotonic() - self._drawn_secs >= _SECS
    is_last = line.startswith(('total time', 'report'))
    if num_points > max(1, self._num_drawn) and (is_due or is_last):
      self._draw()
      self._num_drawn = num_points
      self._drawn_secs = time.monotonic()

  def _draw(self) -> None:
    # As a picture: a figure is shown as text unless pyplot has drawn before.
    display, png = sys.modules['IPython'].display, io.BytesIO()
    self._curve.plot().figure.savefig(png, format='png')
    picture = display.Image(data=png.getvalue(), format='png')
    if self._handle is None:
      self._handle = display.display(picture, display_id=True)
    else:
      self._handle.update(picture)


class Curve:
  """Points (global step, loss), in the order of the lines.

  Attributes:
    steps: list of int.
    losses: list of float.
  """

  def __init__(self):
    self.steps, self.losses = [], []

  def take(self, line: str) -> bool:
    """Adds the loss that a line gives; returns whether it gives one."""
    match = _STEP.match(line)
    if not match:
      return False
    self.steps.append(int(match[1]))
    self.losses.append(float(match[2]))
    return True

  def plot(self, axes: 'Axes | None' = None) -> 'Axes':
    """Draws the curve; returns where.

    Args:
      axes: what to draw into; None for those of a new figure.

    Raises:
      ImportError: matplotlib is not installed.
    """
    if axes is None:
      try:
        from matplotlib import figure  # noqa: PLC0415  The extra `plots`.
      except ImportError as error:
        raise ImportError(
          f'no plot: {error}; pip install matplotlib, or distmnist[plots]'
        ) from error
      axes = figure.Figure(figsize=(6, 3), layout='constrained').subplots()
    axes.plot(self.steps, self.losses, marker='.')
    axes.set_xlabel('global step')
    axes.set_ylabel('loss')
    return axes
