"""When the chief saves: at the start, at intervals, if asked to, at the end."""

import logging
import math
import time

import tensorflow.compat.v1 as tf
from absl import flags

from distmnist.common import cli
from distmnist.logdir import history, saving

_log = logging.getLogger(__name__)

SAVE_SECS = flags.DEFINE_float(
  'save_secs', 60, 'Seconds from one checkpoint to the next.', lower_bound=0.1
)
SAVE_STEPS = flags.DEFINE_integer(
  'save_steps',
  None,
  'Global steps from one checkpoint to the next, beside --save_secs.',
  lower_bound=1,
)

# How often it looks whether a ps wants a checkpoint.
_LOOK_SECS = 0.5
# After a save that has failed the next try comes so much later, each time twice
# as late, until so many have failed one after the other.
_RETRY_SECS = 2.0
_MAX_FAILURES = 6


class SaveHook(tf.train.SessionRunHook):
  """What is lost with a ps is what was done since the last checkpoint.

  A save that fails while the training goes on is said and tried again, as the
  disk may have room again in a minute. The first one and the last one must
  not fail.
  """

  def __init__(
    self, steps, global_step, saver, writer, save_secs, save_steps, others
  ):
    """
    Args:
      steps: fused_steps.Steps, with the `global_step` after each.
      global_step: int64 scalar variable.
      saver: tf.train.Saver.
      writer: saving.CheckpointWriter, or None: then there is nothing to save,
        and what asks for it is told so.
      save_secs: float, seconds from one checkpoint to the next.
      save_steps: int, global steps from one to the next, or None.
      others: session.Others; a ps that must stop asks for a checkpoint.
    """
    self._steps = steps
    self._global_step = global_step
    self._saver = saver
    self._writer = writer
    self._save_secs = save_secs
    self._save_steps = save_steps or math.inf
    self._others = others
    self._next_look = 0.0
    self._next_try = 0.0
    self._num_failures = 0
    self._saved_step = self._step = None

  def find_unsaved(self):
    """Returns what would be lost if this process ended now (str), or None.

    Reads no file: the disk may be what holds a save up.
    """
    step, saved_step = self._step, self._saved_step
    if not self._writer or step is None or step == saved_step:
      return None
    newest = 'there is no checkpoint'
    if saved_step is not None:
      path = self._writer.path_of_step(saved_step)
      newest = f'the newest checkpoint is {path}'
    return f'step {step} is not saved: {newest}'

  def after_create_session(self, session, coord):
    self._save(session)

  def after_run(self, run_context, run_values):
    self._step = self._steps.last['global_step']
    now, is_wanted = time.monotonic(), False
    if now < self._next_try:
      return
    if now >= self._next_look:
      self._next_look = now + _LOOK_SECS
      is_wanted = self._others.is_save_wanted()
    num_steps = self._step - (self._saved_step or 0)
    is_due = num_steps >= self._save_steps or now - self._time > self._save_secs
    if is_wanted or is_due:
      is_saved = self._try_to_save(run_context.session)
      if is_wanted and is_saved:
        self._others.confirm_save(self._saved_step)

  def end(self, session):
    self._save(session)

  def _try_to_save(self, session):
    """Returns whether it went well.

    Raises:
      cli.RunError: it has failed too often.
    """
    try:
      self._save(session)
    except saving.SaveError as error:
      self._num_failures += 1
      if self._num_failures >= _MAX_FAILURES:
        raise cli.RunError(
          f'{error}; given up after {_MAX_FAILURES} tries'
        ) from error
      secs = _RETRY_SECS * 2 ** (self._num_failures - 1)
      self._next_try = time.monotonic() + secs
      _log.info(f'{error}; the training goes on, next try in {secs:g} s')
      return False
    self._num_failures = 0
    return True

  def _save(self, session):
    self._time = time.monotonic()
    if not self._writer:
      return
    step = int(session.run(self._global_step))
    if not self._writer.is_saved(step):
      history.record('saving', step=step)
      self._writer.save(self._saver, session, step)
      history.record('saved', step=step)
    self._step = self._saved_step = step
