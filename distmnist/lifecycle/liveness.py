"""A worker's sessions and steps, seen by what watches over its task.

The first of all hooks: what begins is noted before anything that can block, and
every other hook's calls of a session are remembered and name a lost task.

A worker that was suspended learns from its next beat whether another process
has taken its place (heartbeats.py). It begins no step until that beat is
answered: otherwise a rule with local steps would train on, with the other's
batches.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import tensorflow.compat.v1 as tf

from distmnist.cluster import incarnations, probing, repeated_runs

if TYPE_CHECKING:
  from distmnist.lifecycle import task as task_lib

# Its main thread has nothing else to do. A look at a port may take seconds.
_LOOK_SECS, _PROBE_SECS = 0.05, 1.0


class LivenessHook(tf.train.SessionRunHook):
  """Notes what begins and ends, finds lost tasks, keeps this worker's place."""

  def __init__(
    self,
    task: task_lib.Task,
    steps_wait_for_others: bool = False,
    describe_wait: Callable[[], str] | None = None,
    find_loss: Callable[[], str] | None = None,
  ) -> None:
    """
    Args:
      task: of a worker, already serving.
      steps_wait_for_others: whether other workers may hold up a step.
      describe_wait: gives what a step is waiting for; called in another thread
        while that step lasts.
      find_loss: see strategy.MemberHook.
    """
    self._task = task
    self._steps_wait_for_others = steps_wait_for_others
    self._describe_wait = describe_wait
    self._losses = incarnations.LossWatch(task.cluster, task.server, find_loss)

  def begin(self) -> None:
    self._losses.build()

  def after_create_session(
    self, session: tf.Session, coord: tf.train.Coordinator
  ) -> None:
    # The only place where session.run is replaced. The graph may grow, but what
    # it has stays: what is remembered of it is valid.
    remembered = repeated_runs.RepeatedRuns(session)
    session.run = self._losses.begin_session(session, coord, remembered.run)
    self._losses.watch_session(session)
    self._task.stalls.busy('the start of a session', waits_for_others=True)

  def before_run(self, run_context: tf.train.SessionRunContext) -> None:
    self._losses.note_move()
    self._task.stalls.step_begins(
      self._steps_wait_for_others, self._describe_wait
    )
    if self._task.server:
      self._keep_place()

  def after_run(
    self,
    run_context: tf.train.SessionRunContext,
    run_values: tf.train.SessionRunValues,
  ) -> None:
    self._losses.note_move()
    self._task.stalls.step_ends()
    self._task.stalls.busy('what follows a step')

  def end(self, session: tf.Session) -> None:
    self._losses.close()
    self._task.stalls.busy('the end')

  def _keep_place(self) -> None:
    """Waits while the last answer to a beat is too old.

    Raises:
      tf.errors.UnavailableError: the task that answers is gone.
      stop_request.StoppedError: this task was asked to stop.
    """
    cluster = self._task.cluster
    next_probe = time.monotonic() + _PROBE_SECS
    while self._task.watchdog.may_be_replaced():
      self._task.stop.wait(_LOOK_SECS)
      if time.monotonic() >= next_probe:
        name = cluster.coordinator
        if probing.find_silent({name: cluster.coordinator_address}):
          raise tf.errors.UnavailableError(None, None, f'{name} is gone')
        next_probe = time.monotonic() + _PROBE_SECS
