"""Ends a training at its last step, on request, or at an infinite loss.

What was made by each step is read from what fused_steps.Steps has fetched in
the run of the training step itself: a step stays one session.run.
"""

from __future__ import annotations

import logging
import math
import operator
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import tensorflow.compat.v1 as tf

from distmnist.common import cli
from distmnist.logdir import history as history_lib
from distmnist.watching import own_metrics

if TYPE_CHECKING:
  from distmnist.cluster import stop_request
  from distmnist.exchange.steps import fused_steps
  from distmnist.training.hooks import own_step_hook

_log = logging.getLogger(__name__)

# How often a worker checks whether the chief has ended the training early.
_LOOK_SECS = 0.5


class StopHook(tf.train.SessionRunHook):
  """Ends the loop at the last step, on a signal, or when all are to stop.

  At the end, what was trained is saved before anything that may fail or take
  long.

  Attributes:
    sessions: list of [first, last], see report.WorkerStats.
    is_told: whether the loop ends as all were asked to end theirs.
  """

  def __init__(
    self,
    steps: fused_steps.Steps | own_step_hook.OwnStepHook,
    global_step: tf.Variable,
    last_step: Callable[[tf.Session], int] | int,
    stop: stop_request.StopRequest,
    is_stop_for_all: Callable[[], bool],
    request_stop: Callable[[Any], None] = operator.methodcaller('request_stop'),
    explain_nan: Callable[[float, int, int], str] | None = None,
    save: Callable[[tf.Session], None] = lambda session: None,
    history: history_lib.History | None = None,
    metrics: own_metrics.OwnMetrics | None = None,
  ) -> None:
    """
    Args:
      steps: with the `global_step` after each.
      global_step: int64 scalar variable.
      last_step: the global step at which training ends, or a callable -> int,
        called with each new session.
      is_stop_for_all: called at the start of each session and
        every half second.
      request_stop: callable(context), how to end before the last step; the
        context has a method request_stop.
      explain_nan: callable(loss, global step, place of the step in its run) ->
        str, see divergence.LossCheck; None to leave the `loss` alone.
      save: at the end saves what was trained.
    """
    self._steps = steps
    self._global_step = global_step
    self._find_last_step = (
      last_step if callable(last_step) else lambda session: last_step
    )
    self._last_step = 0  # Until there is a session.
    self._stop = stop
    self._is_stop_for_all = is_stop_for_all
    self._request_stop = request_stop
    self._explain_nan = explain_nan
    self._save = save
    self._history = history or history_lib.History()
    self._metrics = metrics or own_metrics.OwnMetrics()
    self._next_look = 0.0
    self._has_run = self.is_told = False
    self.sessions: list[list[int]] = []

  def after_create_session(
    self, session: tf.Session, coord: tf.train.Coordinator
  ) -> None:
    step = int(session.run(self._global_step))
    self._last_step = self._find_last_step(session)
    self._history.write('session', step=step)
    if not self._has_run:
      del self.sessions[-1:]  # It was lost before its first step.
    self._has_run = False
    if self.sessions:
      lost = max(0, self.sessions[-1][1] - step)
      text = f'recovered at step {step}: {lost} steps lost'
      _log.info(text)
      self._metrics.write('event', event='recovered', step=step, text=text)
    self.sessions.append([step, step])
    if step >= self._last_step or self._look():
      coord.request_stop()
    elif self._stop.is_requested:
      # While the session was made. The others may have stopped already, and a
      # step might wait for them.
      self._request_stop(coord)

  def after_run(
    self,
    run_context: tf.train.SessionRunContext,
    run_values: tf.train.SessionRunValues,
  ) -> None:
    self._has_run = True
    step = self._steps.last['global_step']
    # A worker that waited while the center was set back is released with the
    # step of that time.
    self.sessions[-1][1] = max(self.sessions[-1][1], step)
    if step >= self._last_step:
      run_context.request_stop()
    elif self._stop.is_requested:
      self._request_stop(run_context)
    elif time.monotonic() >= self._next_look:
      self._next_look = time.monotonic() + _LOOK_SECS
      if self._look():
        self._request_stop(run_context)
    if self._explain_nan:
      self._check_costs(self._explain_nan)

  def _check_costs(self, explain: Callable[[float, int, int], str]) -> None:
    """Raises cli.RunError, with advice, if the loss of a step is not finite."""
    for place, step in enumerate(self._steps.done):
      loss = step['loss']
      if not math.isfinite(loss):
        raise cli.RunError(explain(loss, step['global_step'], place))

  def end(self, session: tf.Session) -> None:
    self._save(session)

  def _look(self) -> bool:
    self.is_told = self.is_told or self._is_stop_for_all()
    return self.is_told
