"""Saves by the chief: at the start, at intervals, on request, at the end."""

from __future__ import annotations

import contextlib
import logging
import math
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

import tensorflow.compat.v1 as tf
from absl import flags

from distmnist.logdir import history as history_lib
from distmnist.logdir import saving

if TYPE_CHECKING:
  from distmnist.exchange.steps import fused_steps
  from distmnist.lifecycle import shutdown
  from distmnist.lifecycle import task as task_lib
  from distmnist.tables import table_saver
  from distmnist.training import run_folder
  from distmnist.training.hooks import own_step_hook

_log = logging.getLogger(__name__)

_SAVE_SECS = flags.DEFINE_float(
  'save_secs',
  60,
  'Seconds from the end of one checkpoint to the next one.',
  lower_bound=0.1,
)
_SAVE_STEPS = flags.DEFINE_integer(
  'save_steps',
  None,
  'Checkpoints at multiples of this many global steps, beside --save_secs.',
  lower_bound=1,
)

# How often it checks whether a ps wants a checkpoint.
_LOOK_SECS = 0.5
# The wait before a failed save is tried again; it doubles each time, until
# _MAX_FAILURES saves in a row have failed.
_RETRY_SECS = 2.0
_MAX_FAILURES = 6


def make(
  task: task_lib.Task,
  folder: run_folder.RunFolder,
  steps: fused_steps.Steps | own_step_hook.OwnStepHook,
  center: Center,
  others: shutdown.Others,
) -> SaveHook:
  """Returns a chief's SaveHook.

  Args:
    task: already serving; its stop asks at the end what is unsaved.
    folder: claimed by the chief.
    steps, center, others: see SaveHook.
  """
  writer = None
  if folder.owner:
    writer = saving.make(folder.owner, tf.global_variables())
  saves = SaveHook(
    steps,
    tf.train.get_global_step(),
    center,
    writer,
    _SAVE_SECS.value,
    _SAVE_STEPS.value,
    others,
    # After a signal there may be little time.
    may_end_partial=lambda: task.stop.is_requested,
    beside=task.stalls.beside,
    history=task.history,
    unsaved=task.stop.find_unsaved(),
  )
  task.stop.note_unsaved(saves.find_unsaved)
  return saves


def period_from_flags() -> int | None:
  """Returns --save_steps, int or None."""
  return _SAVE_STEPS.value


class Center(Protocol):
  """What is saved, as worker_loop.RuleState has it."""

  # Its `goes_beside` is whether a save may include steps made meanwhile.
  saver: table_saver.TableSaver

  def is_whole(self, session: tf.Session) -> bool:
    """Whether all of it is of one update."""
    ...


class SaveHook(tf.train.SessionRunHook):
  """Saves checkpoints: losing a ps loses only the work since the last one.

  A save that fails during the training is logged and tried again, as is the
  first one if its failure may pass; the last one must not fail. The training
  waits for each, unless the saver `goes_beside` the steps, as a saver of large
  tables does.
  """

  def __init__(
    self,
    steps: fused_steps.Steps | own_step_hook.OwnStepHook,
    global_step: tf.Variable,
    center: Center,
    writer: saving.CheckpointWriter | None,
    save_secs: float,
    save_steps: int | None,
    others: shutdown.Others,
    may_end_partial: Callable[[], bool] = lambda: False,
    beside: Callable[
      [str], contextlib.AbstractContextManager
    ] = contextlib.nullcontext,
    history: history_lib.History | None = None,
    unsaved: str | None = None,
  ) -> None:
    """
    Args:
      steps: with the `global_step` after each.
      global_step: int64 scalar variable.
      writer: None if there is nothing to save; what asks for a save is told so.
      save_secs: seconds from one checkpoint to the next.
      save_steps: also at multiples of so many global steps.
      others: a ps that must stop asks for a checkpoint.
      may_end_partial: whether the last checkpoint may be partial
        (common/partial_names.py), as those before it may.
      beside: callable(what) -> a context in which a save beside the steps runs.
      unsaved: what is not saved as long as there is no session.
    """
    self._steps = steps
    self._global_step = global_step
    self._center = center
    self._writer = writer
    self._save_secs = save_secs
    self._save_steps: float = save_steps or math.inf
    self._others = others
    self._history = history or history_lib.History()
    self._may_end_partial, self._beside = may_end_partial, beside
    self._unsaved = unsaved
    self._next_look = 0.0
    self._next_try = 0.0
    self._num_failures = 0
    self._saved_step: int | None = None
    self._step: int | None = None
    self._thread = _SaveThread()

  def find_unsaved(self) -> str | None:
    """Returns what would be lost if this process ended now, or None.

    Reads no file: the disk may be what is holding up a save.
    """
    step, saved_step = self._step, self._saved_step
    if not self._writer:
      return None
    if step is None:
      return self._unsaved
    if saved_step is None:
      return f'step {step} is not saved: there is no checkpoint'
    if step <= saved_step:
      return None
    path = self._writer.path_of_step(saved_step)
    return f'step {step} is not saved: the newest checkpoint is {path}'

  def after_create_session(
    self, session: tf.Session, coord: tf.train.Coordinator
  ) -> None:
    self._time = -math.inf
    # If it is amid an update, the first step completes that.
    writer = self._writer
    if not (writer and self._is_amid_update(writer, session)):
      self._try_to_save(lambda: self._save(session), saving.PassingSaveError)

  def _is_amid_update(
    self, writer: saving.CheckpointWriter, session: tf.Session
  ) -> bool:
    step = int(session.run(self._global_step))
    is_known = not step or writer.is_saved(step)
    return not (is_known or self._center.is_whole(session))

  def after_run(
    self,
    run_context: tf.train.SessionRunContext,
    run_values: tf.train.SessionRunValues,
  ) -> None:
    self.look(run_context.session, self._steps.last['global_step'])

  def look(self, session: tf.Session, step: int) -> None:
    """Saves if it is time to, or if a ps that must stop waits for it.

    Args:
      step: the global step.

    Raises:
      cli.RunError: it has failed too often.
    """
    self._step = step
    now, is_wanted = time.monotonic(), False
    if now < self._next_try or self._thread.is_running:
      return
    if self._thread.is_begun and not self._try_to_save(self._thread.finish):
      return
    if now >= self._next_look:
      self._next_look = now + _LOOK_SECS
      is_wanted = self._others.is_save_wanted()
    every, saved_step = self._save_steps, self._saved_step or 0
    has_passed = self._step // every > saved_step // every
    is_due = has_passed or now - self._time > self._save_secs
    if self._center.saver.goes_beside and is_due and not is_wanted:
      save = self._prepare(session)

      def save_beside() -> None:
        with self._beside('a save beside the steps'):
          save()

      self._thread.begin(save_beside)
    elif is_wanted or is_due:
      is_saved = self._try_to_save(lambda: self._save(session))
      if is_wanted and is_saved:
        self._others.confirm_save(self._saved_step)

  def save_last(self, session: tf.Session) -> None:
    """Saves the current step if it is unsaved; before the others may leave.

    No `end` of a hook: end_hook.py and stop_hook.py say when.
    """
    self.end_beside()
    if self._writer and not self._center.is_whole(session):
      _log.info(
        'some of the parameters are an update ahead of the others, as the rest '
        'of the update has not arrived in time: they are not saved'
      )
      return
    self._save(session, self._may_end_partial())

  def save_early(self, session: tf.Session) -> None:
    """Saves before what may fail or take long, if the center is whole."""
    self.end_beside()
    if self._writer and self._center.is_whole(session):
      self._save(session, self._may_end_partial())

  def end_beside(self) -> None:
    """Waits for any save beside the steps, and ignores its errors.

    Also called before a center is restored, so that no checkpoint newer than
    the restored one is completed later.
    """
    if self._thread.is_begun:
      with contextlib.suppress(saving.SaveError, tf.errors.OpError):
        self._thread.finish()

  def _try_to_save(
    self,
    save: Callable[[], None],
    may_fail: type[saving.SaveError] = saving.SaveError,
  ) -> bool:
    """Calls `save`; returns whether it succeeded.

    Raises:
      saving.SaveError: it has failed too often, or is none of `may_fail`.
    """
    try:
      save()
    except may_fail as error:
      self._num_failures += 1
      if self._num_failures >= _MAX_FAILURES:
        raise type(error)(
          f'{error}; given up after {_MAX_FAILURES} tries'
        ) from error
      secs = _RETRY_SECS * 2 ** (self._num_failures - 1)
      self._next_try = time.monotonic() + secs
      _log.info(f'{error}; the training goes on, next try in {secs:g} s')
      return False
    self._num_failures = 0
    return True

  def _save(self, session: tf.Session, may_be_partial: bool = True) -> None:
    self._prepare(session, may_be_partial)()
    self._step = self._saved_step

  def _prepare(
    self, session: tf.Session, may_be_partial: bool = True
  ) -> Callable[[], None]:
    """Returns a callable that saves the current step."""
    writer = self._writer
    if not writer:
      return self._note_save
    step = int(session.run(self._global_step))

    def save() -> None:
      if not writer.is_saved(step, may_be_partial):
        self._history.write('saving', step=step)
        writer.save(self._center.saver, session, step, may_be_partial)
        self._history.write('saved', step=step)
      self._saved_step = step
      self._note_save()

    return save

  def _note_save(self) -> None:
    self._time = time.monotonic()


class _SaveThread:
  """A save beside the steps, one at a time; `finish` raises its errors."""

  def __init__(self) -> None:
    self._thread: threading.Thread | None = None
    self._error: BaseException | None = None

  @property
  def is_running(self) -> bool:
    """Whether a save is in progress."""
    return self._thread is not None and self._thread.is_alive()

  @property
  def is_begun(self) -> bool:
    """Whether a save was begun and not yet passed to `finish`."""
    return self._thread is not None

  def begin(self, save: Callable[[], None]) -> None:
    """Calls `save` in a thread.

    The thread ends with the process: what it has written by then has no final
    name and is not a checkpoint.
    """
    self._thread = threading.Thread(
      target=self._run, args=(save,), name='save', daemon=True
    )
    self._thread.start()

  def _run(self, save: Callable[[], None]) -> None:
    try:
      save()
    except BaseException as error:
      self._error = error

  def finish(self) -> None:
    """Waits for the save that was begun; raises what it raised."""
    if self._thread:
      self._thread.join()
    self._thread = None
    error, self._error = self._error, None
    if error:
      raise error
