"""The end of a training: who waits for whom, and what is saved when.

  a worker stays     Under a rule that waits for all workers, until the chief
                     has saved the last step: if a ps is lost before that, the
                     chief goes back to an earlier checkpoint and needs them all
                     for the steps from there on. They handle the loss as in any
                     step.
  the chief waits    Until the others have left their loops, before it saves
                     what they have added and leaves, and the ps with it.

A script with a loop of its own decides when its loop ends, and may end it
before the last step, by a break, by a hook or as its data end:

  others go on       Under a rule by which each makes steps of its own. If the
                     chief's input has ended, it stays until they have done
                     their parts, and goes on saving (`outlast`). If its loop
                     has ended, so does the training.
  others wait        Where a step waits for R of N workers, more than N - R that
                     leave hold up the others for ever: the chief looks for that
                     while a step takes long, and ends the training. Where all
                     make as many steps, none waits, and nothing is done.

So it is the global step, or a stop for all, that says whether the training is
over, and not that somebody has requested a stop.

Without a ps all make the last step together, or stop together before it
(exchange/ring/ring_hook.py). After the last step they gather before and after
the chief saves it: if one is lost until then, they meet again, as in any step.
"""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import tensorflow.compat.v1 as tf
from absl import flags

from distmnist.cluster import errors, stop_request
from distmnist.common.names import CHIEF
from distmnist.lifecycle import heartbeats

if TYPE_CHECKING:
  from distmnist.cluster import cluster as cluster_lib
  from distmnist.lifecycle import shutdown
  from distmnist.lifecycle import task as task_lib
  from distmnist.logdir import report
  from distmnist.training.hooks import save_hook
  from distmnist.transport import strategy as strategy_lib

_log = logging.getLogger(__name__)

_END_TIMEOUT_SECS = flags.DEFINE_float(
  'end_timeout_secs',
  30,
  'How long the chief waits for the other workers at the end, in seconds.',
  lower_bound=0,
)
# What the chief does then, to be watched.
WAIT = 'the wait for the others'
# How often a worker that stays asks whether the last step is saved.
_STAY_LOOK_SECS = 0.05
# How often the chief asks who has left, once a step is this long.
_LEFT_LOOK_SECS, _LONG_STEP_SECS = 0.5, 2.0


class Waits(NamedTuple):
  """The waits for other workers where a training ends.

  Attributes:
    stay: whether the workers stay until the last step is saved.
    others_go_on: whether workers may end at different times.
    num_spare: how many workers a step can do without; None where a step waits
      for no other worker.
    gather: whether all gather around the save of the last step.
  """

  stay: bool
  others_go_on: bool
  num_spare: int | None
  gather: bool = False


def find_waits(
  cluster: cluster_lib.Cluster, strategy: strategy_lib.Strategy
) -> Waits:
  """Returns the Waits of a cluster.Cluster under a strategy.Strategy."""
  if not cluster.num_ps:
    return Waits(False, False, None, cluster.num_workers > 1)
  num_pushes = strategy.pushes_per_step
  return Waits(
    strategy.waits_for_all,
    cluster.num_workers > 1 and num_pushes == 1,
    max(0, cluster.num_workers - num_pushes) if num_pushes > 1 else None,
  )


class EndHook(tf.train.SessionRunHook):
  """Waits as the last of the hooks, when nothing else is left to do.

  Attributes:
    workers: of the others that the chief has heard from at the end.
  """

  # From when there is one.
  _session: tf.Session

  def __init__(
    self,
    task: task_lib.Task,
    others: shutdown.Others,
    strategy: strategy_lib.Strategy,
    find_last_step: Callable[[], int],
    saves: save_hook.SaveHook | None = None,
    read_last: Callable[[tf.Session], None] | None = None,
    is_own_loop: bool = False,
  ) -> None:
    """
    Args:
      task: already serving; a worker asked to stop does not stay.
      find_last_step: called within a session: the global step
        at which the training ends.
      saves: save_hook.SaveHook of the chief; None on the others.
      read_last: with which the chief reads what it reports.
      is_own_loop: whether a script decides when the loop ends.
    """
    self._task, self._others = task, others
    self._strategy = strategy
    self._find_last_step = find_last_step
    self._saves, self._read_last = saves, read_last
    self._waits = find_waits(task.cluster, strategy)
    self._has_waited = False
    # Looks whether too many workers have left.
    self._watch: threading.Thread | None = None
    num_spare = self._waits.num_spare
    if is_own_loop and saves and num_spare is not None:
      self._watch = threading.Thread(
        target=self._look_who_left, args=(num_spare,), daemon=True
      )
    self._is_over = threading.Event()
    self.workers: list[report.WorkerStats] = []

  def begin(self) -> None:
    self._global_step = tf.train.get_global_step()

  def after_create_session(
    self, session: tf.Session, coord: tf.train.Coordinator
  ) -> None:
    # A recovery hands step functions the session of before.
    self._session = session
    if self._watch and not self._watch.ident:
      self._watch.start()
    if self._waits.gather and coord.should_stop():
      self._gather_at_last_step(session)
    # A chief restarted after the last step makes no step.
    saves, stays = self._saves, self._waits.stay and coord.should_stop()
    if saves and stays and self._is_training_over(session):
      self._let_all_go(saves, session)

  def after_run(
    self,
    run_context: tf.train.SessionRunContext,
    run_values: tf.train.SessionRunValues,
  ) -> None:
    session = run_context.session
    if self._waits.gather and run_context.stop_requested:
      self._gather_at_last_step(session)
    if not (self._waits.stay and run_context.stop_requested):
      return
    if not self._is_training_over(session):
      return
    if self._saves:
      self._let_all_go(self._saves, session)
      return
    self._strategy.pause(session)
    what = 'the wait for worker 0 to save the last step'
    self._task.stalls.busy(what, waits_for_others=True)
    with contextlib.suppress(stop_request.StoppedError):
      while not self._others.is_saved():
        session.run(self._global_step)  # It fails if a ps is lost.
        self._task.stop.wait(_STAY_LOOK_SECS)

  def end(self, session: tf.Session) -> None:
    self._is_over.set()
    if not self._saves:
      return
    if not self._has_waited:
      self.workers = self._wait_for_others()
    self._saves.save_last(session)  # What the others have added.
    if self._read_last:
      self._read_last(session)

  def outlast(self, session: tf.train.MonitoredSession) -> None:
    """Keeps a chief whose input has ended until the others have ended, too.

    Does nothing on other workers, or where the others do not go on. It has no
    limit as long as they make steps or are alive, but that of
    --stall_fail_secs for a step.

    Args:
      session: recovers if a ps is lost.
    """
    saves = self._saves
    if not (saves and self._waits.others_go_on):
      return
    last_step, next_line = None, 0.0

    def look(step_context: Any) -> int:
      del step_context
      self._strategy.pause(self._session)
      step = int(self._session.run(self._global_step))
      saves.look(self._session, step)
      return step

    def get_on(names: list[str]) -> bool:
      nonlocal last_step, next_line
      before, last_step = last_step, session.run_step_fn(look)
      now = time.monotonic()
      if now >= next_line:
        next_line = now + self._task.stalls.warn_secs
        _log.info(
          f'step {last_step}: {CHIEF} has no more input, and waits for '
          f'{errors.list_some(names)}'
        )
      if last_step != before:
        self._task.stalls.busy(WAIT, waits_for_others=True)
        return True
      secs = map(self._task.watchdog.secs_silent, names)
      return any(s is not None and s < heartbeats.SILENT_SECS for s in secs)

    self._has_waited = True
    self.workers = self._wait_for_others(get_on)

  def end_for_all(self, step: int, last_step: int) -> None:
    """Ends the training as the chief's own loop has ended before the last step.

    Does nothing on other workers, or where the others do not go on.
    """
    if self._saves and self._waits.others_go_on:
      _log.info(
        f'the loop of {CHIEF} has ended at step {step}'
        + (f' of {last_step}' if last_step < sys.maxsize else '')
        + ': the others end theirs, too'
      )
      self._others.stop_all()
      # Nobody needs to stay: the chief saves at its end.
      self._others.say_saved()

  def _is_training_over(self, session: tf.Session) -> bool:
    """Whether the training has ended, and not only the loop of this worker."""
    if self._task.stop.is_requested:
      return False
    is_last = session.run(self._global_step) >= self._find_last_step()
    is_alone = self._task.cluster.num_workers == 1
    return bool(is_last or is_alone or self._others.is_stop_for_all())

  def _gather_at_last_step(self, session: tf.Session) -> None:
    """Has all wait until it is saved; does nothing before that step.

    All make that step, so that all come here, whatever else was asked of them.
    """
    if session.run(self._global_step) < self._find_last_step():
      return
    what = 'the wait for all workers after the last step'
    self._task.stalls.busy(what, waits_for_others=True)
    self._strategy.gather(session)
    if self._saves:
      self._saves.save_last(session)
    self._strategy.gather(session)

  def _let_all_go(self, saves: save_hook.SaveHook, session: tf.Session) -> None:
    saves.save_last(session)
    self._others.say_saved()

  def _wait_for_others(
    self, get_on: Callable[[list[str]], bool] | None = None
  ) -> list[report.WorkerStats]:
    """Waits for the other workers, or until a stop is requested.

    Args:
      get_on: see shutdown.Others.wait_at_end; by default --end_timeout_secs is
        the longest wait. Otherwise it tells the task's stalls how that goes.

    Returns:
      Those of the workers that were heard from.
    """
    stop, stalls = self._task.stop, self._task.stalls
    if stop.is_requested:  # After a signal only a checkpoint is written.
      return []
    secs, found = _END_TIMEOUT_SECS.value, []
    if not get_on:
      stalls.busy(WAIT, own_limit_secs=secs)
    with contextlib.suppress(stop_request.StoppedError):
      found = self._others.wait_at_end(
        secs, stop.wait, get_on or (lambda names: False)
      )
    stalls.busy('the end')
    return found

  def _look_who_left(self, num_spare: int) -> None:
    while not self._is_over.wait(_LEFT_LOOK_SECS):
      if self._task.stalls.step_secs() < _LONG_STEP_SECS:
        continue
      with contextlib.suppress(tf.errors.OpError):
        if self._others.num_left() > num_spare:
          self._others.stop_all()
          _log.info(stop_request.LEFT)
          self._task.stop.wake()
          return
