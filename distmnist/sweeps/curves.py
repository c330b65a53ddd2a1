"""How the combinations of a sweep have learnt: a curve each, over examples."""

from __future__ import annotations

import bisect
import dataclasses
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from distmnist.sweeps import groups as groups_lib
from distmnist.sweeps import trials as trials_lib
from distmnist.watching import metrics_file

_MAX_CURVES = 8  # Of the best; more could not be told apart.
_MAX_SAMPLES = 400  # read of each trial
_NUM_POINTS = 60
# Points that each trial has to have: the last evaluation alone is no curve.
_MIN_EVALUATIONS, _MIN_LOSSES = 2, 3
_Lines = Iterable[Mapping[str, Any]]  # Of watching.metrics_file.


@dataclasses.dataclass(frozen=True)
class Curve:
  """The mean over the seeds of one combination.

  Attributes:
    group: the trials of the combination.
    examples: of each point, examples seen by all workers together.
    means: of each point.
    deviations: of each point, the standard deviation; None of one seed.
  """

  group: groups_lib.Group
  examples: list[float]
  means: list[float]
  deviations: list[float | None]


def read(
  ranked: Iterable[groups_lib.Group], by: str
) -> tuple[str, list[Curve]]:
  """Returns what the curves show, and those of the best combinations.

  They show the validation metric that judges the trials, if these were
  validated as they trained (--validation_steps), else the loss in training.

  Args:
    ranked: from ranking.rank.
    by: what they are ranked by, such as 'validation_accuracy'.
  """
  shown = [group for group in ranked if group.results][:_MAX_CURVES]
  split, _, metric = by.partition('_')

  def read_evaluations(lines: _Lines) -> dict[int, float]:
    return _find_evaluations(lines, split, metric)

  for name, read_points, fewest in (
    (by, read_evaluations, _MIN_EVALUATIONS),
    ('loss', _find_losses, _MIN_LOSSES),
  ):
    found = [_make_curve(group, read_points, fewest) for group in shown]
    if found := [curve for curve in found if curve]:
      return name, found
  return by, []


def _make_curve(
  group: groups_lib.Group,
  read_points: Callable[[_Lines], dict[int, float]],
  fewest: int,
) -> Curve | None:
  """Returns the curve of a group; None if a trial has too few points."""
  curves = []
  for trial in group.counted:
    points = read_points(metrics_file.iterate(trial.logdir, _MAX_SAMPLES))
    if len(points) < fewest:
      return None
    scale = _count_examples_a_step(trial)
    curves.append([(scale * step, points[step]) for step in sorted(points)])
  first = max(curve[0][0] for curve in curves)
  last = max(first, min(curve[-1][0] for curve in curves))
  parts = [place / (_NUM_POINTS - 1) for place in range(_NUM_POINTS)]
  grid = [(1 - part) * first + part * last for part in parts]
  rows = [[_interpolate(curve, x) for curve in curves] for x in grid]
  return Curve(
    *(group, grid, [statistics.fmean(row) for row in rows]),
    [groups_lib.deviation_of(row) for row in rows],
  )


def _interpolate(curve: Sequence[tuple[float, float]], x: float) -> float:
  """Returns the height of a line through points; beyond its ends it is flat."""
  place = bisect.bisect_left(curve, (x,))
  if place in (0, len(curve)):
    return curve[max(0, place - 1)][1]
  (left, low), (right, high) = curve[place - 1 : place + 1]
  part = (x - left) / (right - left)
  return (1 - part) * low + part * high


def _count_examples_a_step(trial: trials_lib.Trial) -> float:
  """Returns how many examples there are for each update of the center."""
  examples, steps = (
    trial.result.get('examples'),
    trial.result.get('global_step'),
  )
  return examples / steps if examples and steps else 1.0


def _find_evaluations(
  lines: _Lines, split: str, metric: str
) -> dict[int, float]:
  """Returns {global step: value}; after a restart the later value counts."""
  found = {}
  for line in lines:
    if line['kind'] == 'evaluation' and line['split'] == split:
      value = line['metrics'].get(metric)
      if value is not None:
        found[line['step']] = value
  return found


def _find_losses(lines: _Lines) -> dict[int, float]:
  """Returns {global step: mean loss of a worker's batches before it}."""
  return {
    line['step']: line['metrics']['loss']
    for line in lines
    if line['kind'] == 'means' and line['metrics'].get('loss') is not None
  }
