"""The best checkpoint of a training by a metric on validation data, in best/.

It holds the very values that were evaluated, together with their metrics: one
file says what is best and how good it is, so no crash can separate the two.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from distmnist.common import files
from distmnist.logdir import checkpoint_reader, checkpoints, saving
from distmnist.storage import paths

_log = logging.getLogger(__name__)

# A metric's name in the checkpoint; no model has such a variable.
_METRIC = 'distmnist/validation_{}'
_WORSE_FILE = 'worse_steps.json'


class Best:
  """Keeps the best checkpoint, and which later evaluations were not better.

  Also which cuts of the rate followed from these, by nn/plateau.py: a center
  that is set back may lack one, which a better evaluation has come after.

  Attributes:
    step: global_step of the best, or None before the first evaluation.
    metric: the name of the metric that judges.
    metrics: by name, all of the best's on validation data; empty before the
      first evaluation.
    path: of its checkpoint, or None without a folder.
    num_worse: evaluations after it that were not better.
  """

  def __init__(
    self,
    folder: str | None = None,
    check_owner: Callable[[], None] = lambda: None,
    metric: str = 'accuracy',
    sign: int = 1,
  ) -> None:
    """Goes on from what earlier lives of this training left in `folder`.

    Args:
      folder: None to keep nothing.
      check_owner: see saving.CheckpointWriter.
      metric: what judges.
      sign: 1 if more of it is better, -1 if less is.
    """
    self.step: int | None = None
    self.path: str | None = None
    self.metrics: dict[str, float] = {}
    self.metric = metric
    self._sign = sign
    self._worse_steps: list[int] = []
    # (number from 1, step of the evaluation), in order.
    self._cuts: list[tuple[int, int]] = []
    self._folder = folder
    self._writer: saving.CheckpointWriter | None = None
    if folder:
      self._writer = saving.CheckpointWriter(folder, 1, check_owner)
      self._writer.remove_unfinished()
      self._read(folder)

  @property
  def value(self) -> float | None:
    """What judges the best; None before the first evaluation."""
    return self.metrics.get(self.metric)

  @property
  def num_worse(self) -> int:
    return len(self._worse_steps)

  def _is_better(self, value: float) -> bool:
    return self.value is None or self._sign * (value - self.value) > 0

  def note(
    self,
    values: Mapping[str, np.ndarray],
    step: int,
    metrics: Mapping[str, float],
    patience: int = 0,
    num_cuts: int = 0,
  ) -> bool:
    """Notes an evaluation, and keeps what was evaluated if it is the best.

    Args:
      values: whole variables, by name: all that a checkpoint holds.
      step: their global_step.
      metrics: by name, computed from them, with the one that judges; nan is
        never the best.
      patience: a cut follows from so many more that were not better; 0 for
        none.
      num_cuts: the cuts that the center has.

    Returns:
      Whether it is the best so far.

    Raises:
      saving.SaveError: it could not be written; then nothing is noted.
      cli.RunError: another process now owns the folder.
    """
    self.forget_removed()
    value = metrics[self.metric]
    if not math.isnan(value) and self._is_better(value):
      if self._writer:
        kept = {_METRIC.format(n): np.float64(x) for n, x in metrics.items()}
        self._writer.save_values({**values, **kept}, step)
        self.path = self._writer.path_of_step(step)
      self.step, self.metrics, self._worse_steps = step, dict(metrics), []
      return True
    # A training that was set back reaches the same steps again.
    worse_steps, cuts = self._find_until(step - 1)
    if step > (self.step or 0):
      worse_steps.append(step)
      if patience and len(worse_steps) % patience == 0:
        last = cuts[-1][0] if cuts else 0
        cuts.append((max(num_cuts, last) + 1, step))
    if self._folder:
      self._write_worse(self._folder, worse_steps, cuts)
    self._worse_steps, self._cuts = worse_steps, cuts
    return False

  def has_cut(self, num_cuts: int, step: int) -> bool:
    """Whether a center at `step` is to have more than `num_cuts` cuts."""
    return any(n > num_cuts and s <= step for n, s in self._cuts)

  def go_back_to(self, step: int) -> None:
    """Forgets what will be evaluated again by a training at `step`."""
    found = self._find_until(step)
    if found == (self._worse_steps, self._cuts):
      return
    self._worse_steps, self._cuts = found
    if self._folder:
      with contextlib.suppress(saving.SaveError):  # The next one writes it.
        self._write_worse(self._folder, *found)

  def _find_until(self, step: int) -> tuple[list[int], list[tuple[int, int]]]:
    """Returns (worse steps, cuts) up to `step`.

    With the cuts up to the best, as what led to these no longer counts.
    """
    last = max(step, self.step or 0)
    return (
      [s for s in self._worse_steps if s <= step],
      [(n, s) for n, s in self._cuts if s <= last],
    )

  def forget_removed(self) -> None:
    """Begins anew if somebody has removed the best checkpoint.

    Without its files nothing could be evaluated or exported at the end.
    """
    with contextlib.suppress(OSError):  # A store that does not answer.
      if self.path and not checkpoint_reader.is_there(self.path):
        _log.info(
          f'{self.path}, the best checkpoint, was removed by somebody: the '
          'evaluations up to now no longer count'
        )
        self.step, self.path, self.metrics = None, None, {}
        self._worse_steps = []

  def _write_worse(
    self, folder: str, steps: list[int], cuts: list[tuple[int, int]]
  ) -> None:
    path = os.path.join(folder, _WORSE_FILE)
    try:
      paths.make_folders(folder)  # As long as nothing was the best.
      with files.replacing(path) as file:
        found = {'metric': self.metric, 'best_step': self.step}
        json.dump(found | {'worse_steps': steps, 'cuts': cuts}, file)
        file.write('\n')
    except OSError as error:
      raise saving.choose_error(error)(
        f'cannot write {path}: {error.strerror}; '
        f'{files.advise(str(error.strerror))}'
      ) from error

  def _read(self, folder: str) -> None:
    for path in checkpoints.list_checkpoints(folder):
      if damage := checkpoints.find_damage(path):
        _log.info(f'{path} was the best checkpoint, and is not whole: {damage}')
        continue
      prefix = _METRIC.format('')
      with checkpoint_reader.Reader(path) as reader:
        step = int(reader.read('global_step'))
        metrics = {
          name.removeprefix(prefix): float(reader.read(name))
          for name in reader.shapes
          if name.startswith(prefix)
        }
      value = metrics.get(self.metric, math.nan)
      # There are two if the writer was killed: the better one is newer.
      if not math.isnan(value) and self._is_better(value):
        self.step, self.path, self.metrics = step, path, metrics
    self._worse_steps = _read_worse(folder, self.metric, self.step)
    with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
      cuts = _read_file(folder)['cuts']  # Whatever is best by now.
      self._cuts = [(int(number), int(step)) for number, step in cuts]


def count_worse(folder: str, metric: str) -> int:
  """Returns the `num_worse` of the Best in a folder; reads no weights."""
  path = checkpoints.find_latest(folder) if paths.is_folder(folder) else None
  step = checkpoints.parse_step(path) if path else None
  return len(_read_worse(folder, metric, step))


def _read_worse(folder: str, metric: str, best_step: int | None) -> list[int]:
  """Returns the steps of later evaluations; [] if unknown."""
  # If this file is damaged, that costs some patience and nothing else.
  with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
    found = _read_file(folder)
    is_same = found.get('metric', metric) == metric  # Of old ones it is.
    if is_same and found['best_step'] == best_step:
      return [int(step) for step in found['worse_steps']]
  return []


def _read_file(folder: str) -> dict[str, Any]:
  return json.loads(paths.read_text(os.path.join(folder, _WORSE_FILE)))
