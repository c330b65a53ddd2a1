"""A worker that may have lost its place to another process begins no step.

A worker that was suspended learns from its next beat whether another process
has taken its place (heartbeats.py). It waits until that beat is answered:
otherwise a rule with local steps would train on, with the other's batches.
"""

import time

import tensorflow.compat.v1 as tf

from distmnist.cluster import probing

# Its main thread has nothing else to do. A look at a port may take seconds.
_LOOK_SECS, _PROBE_SECS = 0.05, 1.0


def make(task):
  """Returns [PlaceHook] for a task.Task; an empty list if it is alone."""
  if not task.server:
    return []
  return [PlaceHook(task.cluster, task.watchdog, task.stop)]


class PlaceHook(tf.train.SessionRunHook):
  """Waits before a step while the last answer to a beat is too old."""

  def __init__(self, cluster, watchdog, stop):
    """
    Args:
      cluster: cluster.Cluster.
      watchdog: watchdog.Watchdog.
      stop: stop_request.StopRequest, whose StoppedError ends a wait.
    """
    self._table = {cluster.coordinator: cluster.coordinator_address}
    self._watchdog, self._stop = watchdog, stop

  def before_run(self, run_context):
    next_probe = time.monotonic() + _PROBE_SECS
    while self._watchdog.may_be_replaced():
      self._stop.wait(_LOOK_SECS)
      if time.monotonic() >= next_probe:
        if probing.find_silent(self._table):
          [name] = self._table
          raise tf.errors.UnavailableError(None, None, f'{name} is gone')
        next_probe = time.monotonic() + _PROBE_SECS
