"""The learning curve of a run: loss and metrics over its steps and epochs.

Workers write the means of their steps to metrics.jsonl, and the chief what it
measures on the validation split; here they are read while they come, and put
together as a curve, a picture, and Keras's history. Matplotlib draws; it is of
the extra `plots` and imported only to draw.
"""

from __future__ import annotations

import bisect
import collections
import contextlib
import io
import math
import os
from typing import TYPE_CHECKING

from distmnist.watching import metrics_file, metrics_line
from distmnist.watching.metrics_line import Line

if TYPE_CHECKING:
  from matplotlib import axes as axes_lib
  from matplotlib import figure as figure_lib

Points = list[tuple[int, float]]  # (global step, value), by step.

LOSS = 'loss'
_KINDS = b'"kind": "means"', b'"kind": "evaluation"'
_MOST_PANELS = 2  # Of a picture: the loss and the first metric.


class Curve:
  """What is known of a run's learning so far, all its lives together."""

  def __init__(self, logdir: str | None) -> None:
    """
    Args:
      logdir: a folder; None, or one in which nothing is kept, has no points.
    """
    self._logdir = logdir
    # {path: (inode, bytes read, lines)}.
    self._files: dict[str, tuple[int | None, int, list[Line]]] = {}

  def look(self) -> bool:
    """Reads what has been written since the last look; returns if any is."""
    if not self._logdir:
      return False
    paths = metrics_file.find(self._logdir).values()
    gone = self._files.keys() - paths  # Moved aside, by a run that starts over.
    for path in gone:
      del self._files[path]
    return any([*map(self._read, paths), gone])

  def _read(self, path: str) -> bool:
    inode, size, lines = self._files.get(path, (None, 0, []))
    with contextlib.suppress(OSError), open(path, 'rb') as file:
      # It may be another run's, or rewritten with half of its lines.
      if os.fstat(file.fileno()).st_ino != inode:
        inode, size, lines = os.fstat(file.fileno()).st_ino, 0, []
      file.seek(size)
      found = []
      for text in file:
        if not text.endswith(b'\n'):
          break  # Still being written.
        size += len(text)
        if any(kind in text for kind in _KINDS):
          found.append(metrics_line.parse(text))
      lines += filter(None, found)
      self._files[path] = inode, size, lines
      return bool(found)
    return False

  def _find_means(self) -> dict[str, list[Line]]:
    """Returns {task: its lines of means, by step}, without what was lost."""
    means = collections.defaultdict(list)
    for *_, lines in self._files.values():
      for line in lines:
        if line['kind'] == 'means':
          mine = means[line['task']]
          # The center was set back to a checkpoint.
          while mine and mine[-1]['step'] > line['step']:
            mine.pop()
          mine.append(line)
    return means

  def _find_validations(self) -> list[Line]:
    """Returns the lines of evaluations on validation examples, by step."""
    found = {
      line['step']: line
      for *_, lines in self._files.values()
      for line in lines
      if line['kind'] == 'evaluation' and line['split'] == 'validation'
    }
    return [found[step] for step in sorted(found)]

  def find_points(self, name: str = LOSS) -> Points:
    """Returns the means over all workers of the loss, or of a metric.

    Args:
      name: of the loss or a metric of the training; with 'val_' before it, of
        the validation, which is not a mean.
    """
    if name.startswith('val_'):
      name = name.removeprefix('val_')
      return [
        (line['step'], line['metrics'][name])
        for line in self._find_validations()
        if line['metrics'].get(name) is not None
      ]
    means = self._find_means()
    lines = sorted(
      (
        line
        for mine in means.values()
        for line in mine
        if line['metrics'].get(name) is not None
      ),
      key=lambda line: line['step'],
    )
    # Workers write about as often as each other: so many next lines have about
    # one of each. All local steps before a first exchange are at step 0.
    groups = []
    for line in lines:
      is_full = groups and len(groups[-1]) >= len(means)
      if not groups or (is_full and groups[-1][-1]['step'] < line['step']):
        groups.append([])
      groups[-1].append(line)
    return [(g[-1]['step'], _compute_mean(g, name)) for g in groups]

  def find_names(self) -> list[str]:
    """Returns the names of the loss and the metrics of the training."""
    names = {}
    for mine in self._find_means().values():
      for line in mine:
        names |= dict.fromkeys(line['metrics'])
    return list(names)

  def _find_all_names(self) -> list[str]:
    """Returns these names, and then those that only a validation has."""
    names = dict.fromkeys(self.find_names())
    for line in self._find_validations():
      names |= dict.fromkeys(line['metrics'])
    return list(names)

  @property
  def epoch(self) -> int:
    """The epoch in which the last steps are, from 1; 0 before the first."""
    lines = [line for mine in self._find_means().values() for line in mine]
    return max((line['epoch'] for line in lines), default=0)

  def find_history(self) -> dict[str, list[float]]:
    """Returns what Keras's History.history has.

    A list for each name has a number per epoch: the mean over the epoch's steps
    of all workers, each on the weights of then. Names that begin with 'val_'
    are of the validation nearest to the epoch's end, nan if there was none.
    Metrics are of the steps that a worker looked at: of `--steps_per_run` steps
    the last one.
    """
    # What a line of several epochs says is shared out evenly among them.
    epochs, ends = collections.defaultdict(list), {}
    for mine in self._find_means().values():
      before = 0
      for line in mine:
        last, step = line['epoch'], line['step']
        first = min(line.get('first_epoch') or last, last)
        num = last - first + 1
        for number in range(max(1, first), last + 1):
          epochs[number].append(line | {'steps': line['steps'] / num})
          end = before + (step - before) * (number - first + 1) / num
          ends[number] = max(end, ends.get(number, 0))
        before = step
    numbers = range(1, self.epoch + 1)
    history = {
      name: [_compute_mean(epochs[number], name) for number in numbers]
      for name in self.find_names()
    }
    by_end = sorted((end, number) for number, end in ends.items())
    validated = {}
    for line in self._find_validations() if ends else ():
      i = bisect.bisect_left(by_end, (line['step'],))
      near = by_end[max(0, i - 1) : i + 1]
      number = min(near, key=lambda x: abs(x[0] - line['step']))[1]
      other = validated.setdefault(number, line)
      validated[number] = min(
        (line, other), key=lambda x: abs(ends[number] - x['step'])
      )
    for name in dict.fromkeys(
      n for x in validated.values() for n in x['metrics']
    ):
      history[f'val_{name}'] = [
        _to_float(validated.get(number, {'metrics': {}})['metrics'].get(name))
        for number in numbers
      ]
    return history

  def plot(
    self, axes: axes_lib.Axes | None = None, name: str = LOSS
  ) -> axes_lib.Axes:
    """Draws the loss, or a metric, over the global steps; returns where.

    Args:
      axes: what to draw into; None for those of a new figure, which a notebook
        shows as a picture.
      name: of the metric; with 'val_' before it, of the validation alone.

    Raises:
      ImportError: matplotlib is not installed.
      ValueError: there is no such metric.
    """
    names, of = self._find_all_names(), name.removeprefix('val_')
    if of not in names and (names or of != LOSS):
      raise ValueError(
        f'there is no metric {name!r}: expected one of {", ".join(names)}'
        if names
        else f'there is no {name!r}: this run keeps no metrics'
      )
    if axes is None:
      _, [axes] = _make_axes(1)
    if of == name and ((points := self.find_points(name)) or not names):
      axes.plot(*_transpose(points), label='training')
    if points := self.find_points(f'val_{of}'):
      axes.plot(*_transpose(points), 'o-', markersize=4, label='validation')
      axes.legend()
    axes.locator_params(axis='x', integer=True)
    axes.set_xlabel('global step')
    axes.set_ylabel(of)
    return axes

  def draw(self, title: str = '') -> bytes:
    """Returns a PNG file of the loss and the first metric.

    Raises:
      ImportError: matplotlib is not installed.
    """
    names = self._find_all_names()[:_MOST_PANELS] or [LOSS]
    figure, panels = _make_axes(len(names))
    for axes, name in zip(panels, names, strict=True):
      self.plot(axes, name)
    if title:
      figure.suptitle(title, fontsize='medium')
    return _make_png(figure)

  def find_picture(self) -> bytes | None:
    """Returns the picture that a notebook shows; None without matplotlib."""
    with contextlib.suppress(ImportError):
      return self.draw()
    return None

  _repr_png_ = find_picture


def _compute_mean(lines: list[Line], name: str) -> float:
  """Returns the mean over the steps of lines; nan if none has the metric."""
  found = [x for x in lines if x['metrics'].get(name) is not None]
  steps = sum(line['steps'] for line in found)
  total = sum(line['steps'] * line['metrics'][name] for line in found)
  return total / steps if steps else math.nan


def _to_float(value: float | None) -> float:
  return math.nan if value is None else value


def _transpose(points: Points) -> tuple[list[int], list[float]]:
  return [step for step, _ in points], [value for _, value in points]


def _make_axes(
  number: int,
) -> tuple[figure_lib.Figure, list[axes_lib.Axes]]:
  """Returns a new figure, and its axes side by side.

  A notebook shows them as a picture, with or without pyplot.

  Raises:
    ImportError: matplotlib is not installed.
  """
  try:
    from matplotlib import axes as axes_lib  # noqa: PLC0415  The extra `plots`.
    from matplotlib import figure as figure_lib  # noqa: PLC0415
  except ImportError as error:
    raise ImportError(
      f"no plot: {error}; pip install matplotlib, or 'distmnist[plots]'"
    ) from error

  class Axes(axes_lib.Axes):
    def _repr_png_(self) -> bytes:
      return _make_png(figure)

  figure = figure_lib.Figure((1 + 4.5 * number, 3), layout='constrained')
  return figure, [
    figure.add_subplot(1, number, i + 1, axes_class=Axes) for i in range(number)
  ]


def _make_png(figure: figure_lib.Figure) -> bytes:
  file = io.BytesIO()
  figure.savefig(file, format='png')
  return file.getvalue()
