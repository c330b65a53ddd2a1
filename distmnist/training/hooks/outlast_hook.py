"""The end of a chief's own loop where no worker needs it for its steps.

A script decides when its loop ends. Under an asynchronous rule the others could
go on without the chief, but not without the ps, which leave with it:

  its input ends    Its part is done; it stays until the others have done
                    theirs, and saves as before.
  its loop ends     Before the last step, by a break or as it returns: the
                    training is over, and the others end their loops, too.

Where workers wait for each other, early_end_hook.py and the rules see to it.
"""

import logging
import time

import tensorflow.compat.v1 as tf

from distmnist.cluster import errors
from distmnist.common.names import CHIEF
from distmnist.lifecycle import heartbeats
from distmnist.training import chief

_log = logging.getLogger(__name__)


def is_needed(cluster, strategy):
  """Whether the workers of a cluster.Cluster may end at different times."""
  others = cluster.num_ps and cluster.num_workers > 1
  return bool(others and strategy.pushes_per_step == 1)


class OutlastHook(tf.train.SessionRunHook):
  """Keeps a chief whose input has ended until the others have ended, too."""

  def __init__(self, task, others, saves, pause):
    """
    Args:
      task: task.Task of the chief, already serving.
      others: shutdown.Others.
      saves: save_hook.SaveHook, which goes on saving.
      pause: callable(session), see strategy.Strategy.pause.
    """
    self._task, self._others, self._saves = task, others, saves
    self._pause = pause
    self._session = None
    self._has_waited = False

  def begin(self):
    self._global_step = tf.train.get_global_step()

  def after_create_session(self, session, coord):
    # A recovery hands step functions the session of before.
    self._session = session

  def outlast(self, session):
    """Waits until the others have left their loops, or a stop is requested.

    It has no limit as long as they make steps or are alive, but that of
    --stall_fail_secs for a step.

    Args:
      session: tf.train.MonitoredSession, which recovers if a ps is lost.
    """
    watchdog, last_step, next_line = self._task.watchdog, None, 0.0

    def look(step_context):
      del step_context
      self._pause(self._session)
      step = int(self._session.run(self._global_step))
      self._saves.look(self._session, step)
      return step

    def get_on(names):
      nonlocal last_step, next_line
      before, last_step = last_step, session.run_step_fn(look)
      now = time.monotonic()
      if now >= next_line:
        next_line = now + watchdog.warn_secs
        _log.info(
          f'step {last_step}: {CHIEF} has no more input, and waits for '
          f'{errors.list_some(names)}'
        )
      if last_step != before:
        self._task.stalls.busy(chief.WAIT, waits_for_others=True)
        return True
      secs = map(watchdog.secs_silent, names)
      return any(s is not None and s < heartbeats.SILENT_SECS for s in secs)

    self._has_waited = True
    chief.wait_for_others(self._task, self._others, get_on)

  def end(self, session):
    if not self._has_waited:
      chief.wait_for_others(self._task, self._others)
