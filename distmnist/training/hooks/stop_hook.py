"""Hooks that end a training: at its last step, or if the cost is not finite.

Those that look at each step read what fused_steps.Steps, which comes before
them, has fetched in the run of the training step itself: a step stays one
session.run. What happens after the loop follows the order of the list of hooks
in worker_loop.py.
"""

import logging
import math
import operator
import time

import tensorflow.compat.v1 as tf

from distmnist.common import cli
from distmnist.logdir import history
from distmnist.watching import own_metrics

_log = logging.getLogger(__name__)

# How often a worker checks whether the chief has ended the training early.
_LOOK_SECS = 0.5


class StopHook(tf.train.SessionRunHook):
  """Ends the loop at the last step, on a signal, or when all are to stop.

  Attributes:
    sessions: list of [first, last], see report.WorkerStats.
    is_told: bool, whether the loop ends as all were asked to end theirs.
  """

  def __init__(
    self,
    steps,
    global_step,
    last_step,
    stop,
    is_stop_for_all,
    request_stop=operator.methodcaller('request_stop'),
  ):
    """
    Args:
      steps: fused_steps.Steps, with the `global_step` after each.
      global_step: int64 scalar variable.
      last_step: int, the global step at which training ends, or a callable ->
        int, called within a session.
      stop: stop_request.StopRequest of this process.
      is_stop_for_all: callable -> bool, called at the start of each session and
        every half second.
      request_stop: callable(context), how to end before the last step; the
        context has a method request_stop.
    """
    self._steps = steps
    self._global_step = global_step
    self._find_last_step = (
      last_step if callable(last_step) else lambda: last_step
    )
    self._stop = stop
    self._is_stop_for_all = is_stop_for_all
    self._request_stop = request_stop
    self._next_look = 0.0
    self._has_run = self.is_told = False
    self.sessions = []

  def after_create_session(self, session, coord):
    step = int(session.run(self._global_step))
    history.record('session', step=step)
    if not self._has_run:
      del self.sessions[-1:]  # It was lost before its first step.
    self._has_run = False
    if self.sessions:
      lost = max(0, self.sessions[-1][1] - step)
      text = f'recovered at step {step}: {lost} steps lost'
      _log.info(text)
      own_metrics.write('event', event='recovered', step=step, text=text)
    self.sessions.append([step, step])
    if step >= self._find_last_step() or self._look():
      coord.request_stop()
    elif self._stop.is_requested:
      # While the session was made. The others may have stopped already, and a
      # step might wait for them.
      self._request_stop(coord)

  def after_run(self, run_context, run_values):
    self._has_run = True
    step = self._steps.last['global_step']
    # A worker that waited while the center was set back is released with the
    # step of that time.
    self.sessions[-1][1] = max(self.sessions[-1][1], step)
    if step >= self._find_last_step():
      run_context.request_stop()
    elif self._stop.is_requested:
      self._request_stop(run_context)
    elif time.monotonic() >= self._next_look:
      self._next_look = time.monotonic() + _LOOK_SECS
      if self._look():
        self._request_stop(run_context)

  def _look(self):
    self.is_told = self.is_told or self._is_stop_for_all()
    return self.is_told


class NanHook(tf.train.SessionRunHook):
  """Stops with helpful advice when the cost of a step is not finite."""

  def __init__(self, steps, explain):
    """
    Args:
      steps: fused_steps.Steps, with the `cost` of each step.
      explain: callable(cost, global step, place of the step in its run) ->
        str; see divergence.LossCheck.
    """
    self._steps = steps
    self._explain = explain

  def after_run(self, run_context, run_values):
    for place, step in enumerate(self._steps.done):
      cost = step['cost']
      if not math.isfinite(cost):
        raise cli.RunError(self._explain(cost, step['global_step'], place))


class EndHook(tf.train.SessionRunHook):
  """Calls `callback(session)` when the training has ended without an error."""

  def __init__(self, callback):
    self._callback = callback

  def end(self, session):
    self._callback(session)
