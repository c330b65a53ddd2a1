"""A worker takes lease after lease, and waits while none is available."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import tensorflow.compat.v1 as tf

from distmnist.cluster import stop_request
from distmnist.training.batches import leases, tickets

if TYPE_CHECKING:
  from distmnist.exchange.steps import fused_steps
  from distmnist.lifecycle import lost_workers as lost_workers_lib
  from distmnist.lifecycle import task as task_lib
  from distmnist.training.batches import batch_source, dispatcher
  from distmnist.transport import strategy as strategy_lib

# How often an idle worker checks whether the others are done.
_FIRST_LOOK_SECS = 0.01
_LOOK_SECS = 0.1
# One look in this many reads the table, too; the others only the step.
_LOOKS_PER_TABLE = 3


class BatchHook(tf.train.SessionRunHook):
  """Takes leases, and waits when nothing is left to take."""

  def __init__(
    self,
    source: batch_source.BatchSource,
    table: dispatcher.Table,
    steps: fused_steps.Steps,
    strategy: strategy_lib.Strategy,
    lost_workers: lost_workers_lib.LostWorkers,
    is_stop_for_all: Callable[[], bool],
    task: task_lib.Task,
  ) -> None:
    """
    Args:
      strategy: notified when this worker pauses.
      task: already serving; its stalls are notified of waits.
    """
    self._source = source
    self._table = table
    self._steps = steps
    self._strategy = strategy
    self._lost_workers = lost_workers
    self._is_stop_for_all = is_stop_for_all
    self._stalls = task.stalls
    self._stop = task.stop
    self._last_run = time.monotonic()

  def after_create_session(
    self, session: tf.Session, coord: tf.train.Coordinator
  ) -> None:
    source, dealing = self._source, self._table.dealing
    source.dealing = dealing
    step, table = self._table.look(session)
    if isinstance(source.tickets, tickets.LockStep):
      source.begin(step, table)
      return
    source.tickets.forget()  # What the lost session had in hand.
    while step < dealing.last_step:
      lease = leases.choose_entry(table, step, source.worker, dealing)
      if self._table.take(session, table, lease):
        source.begin(step, table, lease)
        break
      step, table = self._table.look(session)
    if not source.left and not self._take_more(session):
      coord.request_stop()

  def after_run(
    self,
    run_context: tf.train.SessionRunContext,
    run_values: tf.train.SessionRunValues,
  ) -> None:
    held = self._source.tickets
    if run_context.stop_requested or isinstance(held, tickets.LockStep):
      return
    now = time.monotonic()
    is_late = now - self._last_run > self._stalls.warn_secs
    self._last_run = now
    if self._source.left and not (
      is_late and self._has_lost_lease(run_context.session, held)
    ):
      return
    if not self._take_more(run_context.session):
      run_context.request_stop()
    self._last_run = time.monotonic()

  def _has_lost_lease(self, session: tf.Session, held: tickets.Leased) -> bool:
    """Whether another worker took this one's lease while it was held up."""
    _, table = self._table.look(session)
    if leases.is_owner(table, self._source.worker, *held.in_hand):
      return False
    held.forget()
    return True

  def _take_more(self, session: tf.Session) -> bool:
    """Returns whether there is another lease; waits until that is known."""
    source, dealing = self._source, self._source.dealing
    wait_secs, num_looks, is_waiting = _FIRST_LOOK_SECS, 0, False
    try:
      while True:
        if num_looks % _LOOKS_PER_TABLE:
          step = self._table.look_at_step(session)
        else:
          step, table = self._table.look(session)
        if step >= dealing.last_step:
          self._steps.set_position(step)
          return False
        if not num_looks % _LOOKS_PER_TABLE:
          lease = leases.choose_lease(table, step, source.worker, dealing)
          if leases.is_surplus(table, step, dealing) or (
            lease is None and is_waiting
          ):
            gone = self._lost_workers.find()
            lease = (
              leases.choose_from_gone(table, source.worker, gone, dealing)
              or lease
            )
          if lease and self._table.take(session, table, lease):
            source.begin(step, table, lease)
            return True
          if lease:
            continue  # Another worker was quicker.
        if self._stop.is_requested or self._is_stop_for_all():
          return False
        if not is_waiting:
          is_waiting = True
          self._stalls.busy(
            'the wait for the last batches', waits_for_others=True
          )
          self._strategy.pause(session)
        num_looks += 1
        with contextlib.suppress(stop_request.StoppedError):
          self._stop.wait(wait_secs)  # Then the session ends normally.
        wait_secs = min(_LOOK_SECS, 2 * wait_secs)
    finally:
      if is_waiting:
        self._stalls.busy('what follows a step')
        if source.left:
          self._strategy.resume(session)
