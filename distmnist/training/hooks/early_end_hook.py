"""Ends the chief's wait for workers that have left their own loops.

A script decides when its loop ends. Where a step waits for R of N workers, more
than N - R that leave before the last step, as their data are fewer, leave the
others in a step that would never end. Where all make as many steps, none waits,
and nothing is done here. Without a ps it is done by exchange/ring/ring_hook.py.
"""

import contextlib
import logging
import threading

import tensorflow.compat.v1 as tf

from distmnist.cluster import stop_request

_log = logging.getLogger(__name__)

_LOOK_SECS = 0.5
# A step this long may wait for a worker that has left.
_WAIT_SECS = 2.0


def make(task, strategy, others):
  """Returns the hooks that do this, for a chief; a list."""
  cluster, num_pushes = task.cluster, strategy.pushes_per_step
  if not (cluster.num_ps and cluster.is_chief and num_pushes > 1):
    return []
  num_spare = max(0, cluster.num_workers - num_pushes)
  return [EarlyEndHook(others, num_spare, task.stop, task.stalls)]


class EarlyEndHook(tf.train.SessionRunHook):
  """Looks, while a step takes long, whether too many workers have left."""

  def __init__(self, others, num_spare, stop, stalls):
    """
    Args:
      others: shutdown.Others.
      num_spare: int, how many workers a step can do without.
      stop: stop_request.StopRequest, by which the rule ends its wait.
      stalls: stalls.Stalls, which knows how long a step takes.
    """
    self._others, self._num_spare = others, num_spare
    self._stop, self._stalls = stop, stalls
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
        if self._others.num_left() > self._num_spare:
          self._others.stop_all()
          _log.info(stop_request.LEFT)
          self._stop.wake()
          return
