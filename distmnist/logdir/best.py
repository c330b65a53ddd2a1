"""The best checkpoint of a training by a metric on validation data, in best/.

It holds the very values that were evaluated, together with their metric: one
file says what is best and how good it is, so no crash can separate the two.
"""

import contextlib
import json
import logging
import math
import os

import numpy as np

from distmnist.common import files
from distmnist.logdir import checkpoint_reader, checkpoints, saving
from distmnist.storage import paths

_log = logging.getLogger(__name__)

# The metric's name in the checkpoint; no model has such a variable.
_METRIC = 'distmnist/validation_{}'
_WORSE_FILE = 'worse_steps.json'


class Best:
  """Keeps the best checkpoint, and which later evaluations were not better.

  Attributes:
    step: int, global_step of the best, or None before the first evaluation.
    metric: str, the name of the metric that judges.
    value: float, the best's metric; None before the first evaluation.
    path: str, its checkpoint, or None without a folder.
    num_worse: int, evaluations after it that were not better.
  """

  def __init__(
    self, folder=None, check_owner=lambda: None, metric='accuracy', sign=1
  ):
    """Goes on from what earlier lives of this training left in `folder`.

    Args:
      folder: str, or None to keep nothing.
      check_owner: callable, see saving.CheckpointWriter.
      metric: str.
      sign: int, 1 if more of it is better, -1 if less is.
    """
    self.step, self.value, self.path = None, None, None
    self.metric = metric
    self._sign = sign
    self._worse_steps = []
    self._folder = folder
    self._writer = None
    if folder:
      self._writer = saving.CheckpointWriter(folder, 1, check_owner)
      self._writer.remove_unfinished()
      self._read()

  @property
  def num_worse(self):
    return len(self._worse_steps)

  def _is_better(self, value):
    return self.value is None or self._sign * (value - self.value) > 0

  def note(self, values, step, value):
    """Notes an evaluation, and keeps what was evaluated if it is the best.

    Args:
      values: {name: array}, whole variables: all that a checkpoint holds.
      step: int, their global_step.
      value: float, the metric computed from them; nan is never the best.

    Returns:
      bool, whether it is the best so far.

    Raises:
      saving.SaveError: it could not be written; then nothing is noted.
      cli.RunError: another process now owns the folder.
    """
    self.forget_removed()
    if not math.isnan(value) and self._is_better(value):
      if self._folder:
        values = values | {_METRIC.format(self.metric): np.float64(value)}
        self._writer.save_values(values, step)
        self.path = checkpoints.path_of_step(self._folder, step)
      self.step, self.value, self._worse_steps = step, value, []
      return True
    # A training that was set back reaches the same steps again.
    worse_steps = [s for s in self._worse_steps if s < step]
    worse_steps += [step] if step > (self.step or 0) else []
    if self._folder:
      self._write_worse(worse_steps)
    self._worse_steps = worse_steps
    return False

  def forget_removed(self):
    """Begins anew if somebody has removed the best checkpoint.

    Without its files nothing could be evaluated or exported at the end.
    """
    with contextlib.suppress(OSError):  # A store that does not answer.
      if self.path and not checkpoint_reader.is_there(self.path):
        _log.info(
          f'{self.path}, the best checkpoint, was removed by somebody: the '
          'evaluations up to now no longer count'
        )
        self.step, self.value, self.path = None, None, None
        self._worse_steps = []

  def _write_worse(self, steps):
    path = os.path.join(self._folder, _WORSE_FILE)
    try:
      paths.make_folders(self._folder)  # As long as nothing was the best.
      with files.replacing(path) as file:
        json.dump({'best_step': self.step, 'worse_steps': steps}, file)
        file.write('\n')
    except OSError as error:
      raise saving.choose_error(error)(
        f'cannot write {path}: {error.strerror}; '
        f'{files.advise(str(error.strerror))}'
      ) from error

  def _read(self):
    for path in checkpoints.list_checkpoints(self._folder):
      if damage := checkpoints.find_damage(path):
        _log.info(f'{path} was the best checkpoint, and is not whole: {damage}')
        continue
      name = _METRIC.format(self.metric)
      with checkpoint_reader.Reader(path) as reader:
        step = int(reader.read('global_step'))
        value = float(reader.read(name)) if name in reader.shapes else math.nan
      # There are two if the writer was killed: the better one is newer.
      if not math.isnan(value) and self._is_better(value):
        self.step, self.value, self.path = step, value, path
    self._worse_steps = _read_worse(self._folder, self.step)


def count_worse(folder):
  """Returns the `num_worse` (int) of the Best in a folder; reads no weights."""
  path = checkpoints.find_latest(folder) if paths.is_folder(folder) else None
  step = checkpoints.parse_step(path) if path else None
  return len(_read_worse(folder, step))


def _read_worse(folder, best_step):
  """Returns the steps (list of int) of later evaluations; [] if unknown."""
  # If this file is damaged, that costs some patience and nothing else.
  with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
    found = json.loads(paths.read_text(os.path.join(folder, _WORSE_FILE)))
    if found['best_step'] == best_step:
      return [int(step) for step in found['worse_steps']]
  return []
