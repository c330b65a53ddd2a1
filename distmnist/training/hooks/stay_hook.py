"""Keeps workers until the last step is saved, if the rule needs them all.

If a ps is lost after the last step but before it is saved, the chief goes back
to an earlier checkpoint. Under a rule that waits for all workers it needs the
others for the steps from there on, so they stay until it has saved, and handle
the loss as in any step.

A hook of the user's may end the loop of one worker before: that one does not
stay, and leaves as after a `break` (early_end_hook.py). So it is the global
step, or a stop for all, that says whether the training is over, and not that
somebody has requested a stop.
"""

import contextlib

import tensorflow.compat.v1 as tf

from distmnist.cluster import stop_request

_LOOK_SECS = 0.05


def make(task, strategy, others, last_step, save):
  """Returns [the StayHook] of a worker, or [] if none is needed.

  Args:
    task: task.Task, already serving.
    strategy: strategy.Strategy.
    others, last_step, save: see StayHook.
  """
  if not (strategy.waits_for_all and task.cluster.num_ps):
    return []
  return [StayHook(others, task, strategy.pause, last_step, save)]


class StayHook(tf.train.SessionRunHook):
  """Waits as the last of the hooks, when nothing else is left to do."""

  def __init__(self, others, task, pause, last_step, save=None):
    """
    Args:
      others: shutdown.Others.
      task: task.Task, already serving; a worker asked to stop does not stay.
      pause: callable(session), see strategy.Strategy.pause.
      last_step: int, the global step at which the training ends, or a callable
        -> int, called within a session.
      save: callable(session) that saves, on the chief; None on the others.
    """
    self._others, self._stop = others, task.stop
    self._is_alone = task.cluster.num_workers == 1
    self._stalls = task.stalls
    self._pause, self._save = pause, save
    self._find_last_step = (
      last_step if callable(last_step) else lambda: last_step
    )

  def begin(self):
    self._global_step = tf.train.get_global_step()

  def _is_over(self, session):
    """Whether the training has ended, and not only the loop of this worker."""
    if self._stop.is_requested:
      return False
    is_last = session.run(self._global_step) >= self._find_last_step()
    return is_last or self._is_alone or self._others.is_stop_for_all()

  def after_create_session(self, session, coord):
    # A chief restarted after the last step makes no step.
    if self._save and coord.should_stop() and self._is_over(session):
      self._end_for_all(session)

  def after_run(self, run_context, run_values):
    session = run_context.session
    if not (run_context.stop_requested and self._is_over(session)):
      return
    if self._save:
      self._end_for_all(session)
      return
    self._pause(session)
    what = 'the wait for worker 0 to save the last step'
    self._stalls.busy(what, waits_for_others=True)
    with contextlib.suppress(stop_request.StoppedError):
      while not self._others.is_saved():
        session.run(self._global_step)  # It fails if a ps is lost.
        self._stop.wait(_LOOK_SECS)

  def _end_for_all(self, session):
    self._save(session)
    self._others.say_saved()
