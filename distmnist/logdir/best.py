"""The best checkpoint of a training by its validation accuracy, in best/.

It holds the very values that were evaluated, and their accuracy beside them:
one file says what is the best and how good it is, so no crash can part the two.
"""

import contextlib
import json
import logging
import os

import numpy as np
import tensorflow.compat.v1 as tf

from distmnist.common import files
from distmnist.logdir import checkpoints, saving

_log = logging.getLogger(__name__)

# The accuracy's name in the checkpoint, where no model has a variable.
_ACCURACY = 'distmnist/validation_accuracy'
_WORSE_FILE = 'worse_steps.json'


class Best:
  """Keeps the best checkpoint, and which evaluations since were not better.

  Attributes:
    step: int, global_step of the best, or None before the first evaluation.
    accuracy: float in 0..1; -1 before the first evaluation.
    path: str, its checkpoint, or None without a folder.
    num_worse: int, evaluations after it that were not better.
  """

  def __init__(self, folder=None, check_owner=lambda: None):
    """Goes on from what earlier lives of this training have left in `folder`.

    Args:
      folder: str, or None: then nothing is kept.
      check_owner: callable, see saving.CheckpointWriter.
    """
    self.step, self.accuracy, self.path = None, -1.0, None
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

  def note(self, values, step, accuracy):
    """Notes an evaluation, and keeps what was evaluated if it is the best.

    Args:
      values: {name: array}, whole variables: all that a checkpoint holds.
      step: int, their global_step.
      accuracy: float in 0..1, computed from them.

    Returns:
      bool, whether it is the best so far.

    Raises:
      saving.SaveError: it could not be written; then nothing is noted.
      cli.RunError: the folder is another's by now.
    """
    if accuracy > self.accuracy:
      if self._folder:
        values = values | {_ACCURACY: np.float64(accuracy)}
        self._writer.save_values(values, step)
        self.path = checkpoints.path_of_step(self._folder, step)
      self.step, self.accuracy, self._worse_steps = step, accuracy, []
      return True
    # A training that was set back comes to the same steps again.
    worse_steps = [s for s in self._worse_steps if s < step]
    worse_steps += [step] if step > self.step else []
    if self._folder:
      self._write_worse(worse_steps)
    self._worse_steps = worse_steps
    return False

  def _write_worse(self, steps):
    path = os.path.join(self._folder, _WORSE_FILE)
    try:
      with files.replacing(path) as file:
        json.dump({'best_step': self.step, 'worse_steps': steps}, file)
        file.write('\n')
    except OSError as error:
      raise saving.SaveError(
        f'cannot write {path}: {error.strerror}; make room there, or give '
        'another --logdir'
      ) from error

  def _read(self):
    for path in checkpoints.list_checkpoints(self._folder):
      if damage := checkpoints.find_damage(path):
        _log.info(f'{path} was the best checkpoint, and is not whole: {damage}')
        continue
      reader = tf.train.load_checkpoint(path)
      # Two are there if the writer was killed: the better one is the newer.
      if reader.has_tensor(_ACCURACY):
        accuracy = float(reader.get_tensor(_ACCURACY))
        if accuracy > self.accuracy:
          self.accuracy, self.path = accuracy, path
          self.step = int(reader.get_tensor('global_step'))
    # Damaged, it costs some patience and nothing else.
    with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
      with open(os.path.join(self._folder, _WORSE_FILE), 'rb') as file:
        found = json.load(file)
      if found['best_step'] == self.step:
        self._worse_steps = [int(step) for step in found['worse_steps']]
