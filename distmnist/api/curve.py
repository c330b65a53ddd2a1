"""The cost of a training, read from the lines that it prints."""

import re

_STEP = re.compile(r'(?:worker 0: )?step (\d+)/\d+ .*\bcost (\S+)')


class Curve:
  """Points (global step, cost), in the order of the lines.

  Attributes:
    steps: list of int.
    costs: list of float.
  """

  def __init__(self):
    self.steps, self.costs = [], []

  def take(self, line):
    """Adds the cost that a line (str) gives; returns whether it gives one."""
    match = _STEP.match(line)
    if not match:
      return False
    self.steps.append(int(match[1]))
    self.costs.append(float(match[2]))
    return True

  def plot(self, axes=None):
    """Draws the curve; returns matplotlib's Axes.

    Args:
      axes: the Axes to draw into; None for those of a new figure.

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
    axes.plot(self.steps, self.costs, marker='.')
    axes.set_xlabel('global step')
    axes.set_ylabel('cost')
    return axes
