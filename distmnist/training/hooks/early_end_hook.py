"""Ends the chief's wait for a worker that has left its own loop.

A script decides when its loop ends. In lock-step a worker that leaves before
the last step, as its data are fewer, leaves the others in a step that would
never end. Where all make as many steps, none waits, and nothing is done here.
"""

import contextlib
import logging
import threading

import tensorflow.compat.v1 as tf

_log = logging.getLogger(__name__)

_LOOK_SECS = 0.5
# A step this long may wait for a worker that has left.
_WAIT_SECS = 2.0


def make(task, strategy, others):
  """Returns the hooks that do this, for a chief; a list."""
  cluster = task.cluster
  if not (cluster.num_ps and cluster.is_chief and strategy.is_lock_step):
    return []
  return [EarlyEndHook(others, task.stop, task.watchdog.stalls)]


class EarlyEndHook(tf.train.SessionRunHook):
  """Looks, while a step takes long, whether another worker has left."""

  def __init__(self, others, stop, stalls):
    """
    Args:
      others: shutdown.Others.
      stop: stop_request.StopRequest, by which the rule ends its wait.
      stalls: stalls.Stalls, which knows how long a step takes.
    """
    self._others, self._stop, self._stalls = others, stop, stalls
    self._thread = None
    self._is_over = threading.Event()

  def after_create_session(self, session, coord):
    if self._thread is None:
      self._thread = threading.Thread(target=self._watch, daemon=True)
      self._thread.start()

  def end(self, session):
    self._is_over.set()

  def _watch(self):
    while not self._is_over.wait(_LOOK_SECS):
      if self._stalls.step_secs() < _WAIT_SECS:
        continue
      with contextlib.suppress(tf.errors.OpError):
        if self._others.has_any_left():
          self._others.stop_all()
          _log.info(
            'another worker has left its loop, and in lock-step no step is '
            'made without it: the training ends here'
          )
          self._stop.wake()
          return
