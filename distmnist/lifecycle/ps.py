"""The life of a parameter server: it serves until all workers are done."""

from __future__ import annotations

import contextlib
import logging
import math
import queue
import time
from typing import TYPE_CHECKING, Any

import tensorflow.compat.v1 as tf

from distmnist.cluster import errors, message_queue, probing, stop_request
from distmnist.common import cli, stop_grace
from distmnist.common.names import CHIEF
from distmnist.lifecycle import shutdown
from distmnist.logdir import logdirs

if TYPE_CHECKING:
  from distmnist.cluster import cluster as cluster_lib
  from distmnist.lifecycle import stalls as stalls_lib
  from distmnist.lifecycle import task as task_lib
  from distmnist.lifecycle import watchdog as watchdog_lib

_log = logging.getLogger(__name__)

# A ps waits this long for the last workers once the chief is done.
_PS_GRACE_SECS = 5.0


def run_ps(task: task_lib.Task) -> int:
  """Serves until the workers are done; returns the exit code.

  Args:
    task: of this ps, which serves.

  Raises:
    cli.RunError: the chief has failed, no worker answers for
      start_timeout_secs though the run has not ended, or this ps does not fit
      the other tasks.
  """
  cluster, server, stop = task.cluster, task.server, task.stop
  task.stalls.busy('the reading of the log directory')
  workers = cluster.addresses('worker')
  waiting, deadline = dict(workers), None
  with shutdown.open_done_queue(cluster, server, cluster.task_index) as box:
    messages = box.listen()
    _log.info(f'{cluster.name} serves on {cluster.address}')
    if ended := _describe_end():
      _log.info(
        f'{ended}: waiting up to {cluster.start_timeout_secs:g} s for workers '
        'that go on with it'
      )
    task.stalls.busy('the check-in', own_limit_secs=cluster.start_timeout_secs)
    with contextlib.suppress(stop_request.StoppedError):
      task.watchdog.check_in()
    task.stalls.idle()  # The loop looks at the workers twice a second.
    liveness = _WorkerLiveness(cluster, task.watchdog, task.stalls)
    while waiting and not stop.is_requested:
      if deadline and time.monotonic() > deadline:
        _log.info(f'leaving without {", ".join(waiting)}: sent no final word')
        break
      try:
        message = messages.get(timeout=0.5)
      except queue.Empty:
        if liveness.check(waiting):
          break
        continue
      name = message.get('done')
      if name is None:
        continue
      if message['comes_back']:
        _log.info(f'{name} has failed, and may come back')
        continue
      waiting.pop(name, None)
      _log.info(f'{name} is done' if message['ok'] else f'{name} has failed')
      if name == CHIEF:
        if not message['ok']:
          # Exit after the chief, so that the launcher names it as the cause.
          probing.wait_until_gone({name: workers[name]}, _PS_GRACE_SECS)
          raise cli.RunError('worker 0, the chief, has failed: see its log')
        deadline = time.monotonic() + _PS_GRACE_SECS
    task.stalls.busy('the end')
    if stop.is_requested:
      _request_checkpoint(cluster, server, messages, stop)
    else:
      # A worker that has said "done" still needs the answer to its last call.
      probing.wait_until_gone(workers, timeout_secs=2.0)
  return stop.end()


class _WorkerLiveness:
  """Tracks which workers are alive, so that a ps without workers exits."""

  def __init__(
    self,
    cluster: cluster_lib.Cluster,
    watchdog: watchdog_lib.Watchdog,
    stalls: stalls_lib.Stalls,
  ) -> None:
    self._cluster = cluster
    self._watchdog, self._stalls = watchdog, stalls
    self._first_time = self._last_sign = time.monotonic()
    # Until a worker beats. One whose port answers may load its data for hours.
    self._next_line = self._first_time + stalls.warn_secs
    self._said: dict[str, float] = {}  # Name: when.

  def check(self, workers: dict[str, str]) -> bool:
    """Logs which of `workers`, {name: address}, have fallen silent.

    Returns:
      Whether none is alive as the run has ended.

    Raises:
      cli.LostError: no worker is alive any more; cli.RunError if none ever
        was.
    """
    now = time.monotonic()
    silent_secs = {n: self._watchdog.secs_silent(n) for n in workers}
    warn_secs = self._stalls.warn_secs
    for name, secs in silent_secs.items():
      if secs is None or secs < warn_secs:
        self._said.pop(name, None)
      elif now - self._said.get(name, -warn_secs) >= warn_secs:
        self._said[name] = now
        _log.info(
          f'{name} at {workers[name]}: no sign of life for {secs:.0f} s'
        )
    if any(s is not None and s < warn_secs for s in silent_secs.values()):
      self._last_sign, self._next_line = now, math.inf
      return False
    if now >= self._next_line:
      self._next_line = now + warn_secs
      _log.info(
        f'no worker has checked in for {now - self._first_time:.0f} s: '
        f'{errors.list_tasks(workers)}'
      )
    # No worker beats, or the table cannot be read: probe the ports.
    answering = workers.keys() - probing.find_silent(workers).keys()
    if any(silent_secs[name] is None for name in answering):
      self._last_sign = now
    limit_secs = self._cluster.start_timeout_secs
    if answering:  # Suspended, it seems.
      limit_secs = max(limit_secs, self._stalls.fail_secs)
    if now - self._last_sign > limit_secs:
      was_there = self._last_sign > self._first_time
      self._stalls.busy('the reading of the log directory')
      if ended := _describe_end():
        _log.info(f'{ended}, and no worker answers for {limit_secs:g} s')
        return True
      raise shutdown.choose_absence_error(not was_there)(
        f'no worker answers: {errors.list_tasks(workers)}; no task to '
        f'serve for {limit_secs:g} s'
      )
    return False


def _describe_end() -> str:
  """Returns at which step the run in --logdir has ended, or ''."""
  logdir = logdirs.from_flags()
  step = logdirs.read_end(logdir) if logdir else None
  if logdir is None or step is None:
    return ''
  return logdirs.describe_end(logdir, step)


def _request_checkpoint(
  cluster: cluster_lib.Cluster,
  server: tf.train.Server,
  messages: queue.Queue[dict[str, Any]],
  stop: stop_request.StopRequest,
) -> None:
  """Asks the chief for a checkpoint, as the shards here are about to be lost.

  If the chief is up but does not save in time, the stop says so.
  """
  chief = {CHIEF: cluster.addresses('worker')[CHIEF]}
  secs = stop_grace.for_save(stop.secs_left)
  deadline = time.monotonic() + secs
  with (
    contextlib.suppress(tf.errors.OpError),
    message_queue.MessageQueue(
      cluster, server, cluster.coordinator_device, 'save'
    ) as box,
  ):
    absences = probing.Absences()
    if not absences.find_gone(chief):
      stop.note_unsaved(
        f'{CHIEF} has not saved within {secs:.0f} s what this ps holds: what '
        'was trained since its newest checkpoint is lost; a longer '
        '--stop_grace_secs gives it more time'
      )
      box.send({'ps': cluster.task_index}, timeout_secs=min(2.0, secs))
      # If all tasks are stopped, the chief saves and leaves on its own.
      while not absences.find_gone(chief) and time.monotonic() < deadline:
        with contextlib.suppress(queue.Empty):
          message = messages.get(timeout=0.1)
          if 'saved' in message:
            step = message['saved']
            _log.info(
              f'{CHIEF} has no --logdir to save to'
              if step is None
              else f'{CHIEF} has saved step {step}'
            )
            stop.note_unsaved(None)
            return
      if time.monotonic() < deadline:  # It has left, and says how itself.
        stop.note_unsaved(None)
