"""Keeps workers until the last step is saved, if the rule needs them all.

If a ps is lost after the last step but before it is saved, the chief goes back
to an earlier checkpoint. Under a rule that waits for all workers it needs the
others for the steps from there on, so they stay until it has saved, and handle
the loss as in any step.
"""

import contextlib

import tensorflow.compat.v1 as tf

from distmnist.cluster import stop_request

_LOOK_SECS = 0.05


def make(task, strategy, others, save):
  """Returns [the StayHook] of a worker, or [] if none is needed.

  Args:
    task: task.Task.
    strategy: strategy.Strategy.
    others, save: see StayHook.
  """
  if not (strategy.waits_for_all and task.cluster.num_ps):
    return []
  return [StayHook(others, task.stop, strategy.pause, save)]


class StayHook(tf.train.SessionRunHook):
  """Waits as the last of the hooks, when nothing else is left to do."""

  def __init__(self, others, stop, pause, save=None):
    """
    Args:
      others: shutdown.Others.
      stop: stop_request.StopRequest; a worker asked to stop does not stay.
      pause: callable(session), see strategy.Strategy.pause.
      save: callable(session) that saves, on the chief; None on the others.
    """
    self._others, self._stop = others, stop
    self._pause, self._save = pause, save

  def begin(self):
    self._global_step = tf.train.get_global_step()

  def after_create_session(self, session, coord):
    # A chief restarted after the last step makes no step.
    is_over = coord.should_stop() and not self._stop.is_requested
    if self._save and is_over:
      self._end_for_all(session)

  def after_run(self, run_context, run_values):
    if not run_context.stop_requested or self._stop.is_requested:
      return
    session = run_context.session
    if self._save:
      self._end_for_all(session)
      return
    self._pause(session)
    with contextlib.suppress(stop_request.StoppedError):
      while not self._others.is_saved():
        session.run(self._global_step)  # It fails if a ps is lost.
        self._stop.wait(_LOOK_SECS)

  def _end_for_all(self, session):
    self._save(session)
    self._others.say_saved()
