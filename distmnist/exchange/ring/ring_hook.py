"""A training without a ps: its workers meet, stop and leave together."""

from __future__ import annotations

import contextlib
import logging
import signal
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import tensorflow.compat.v1 as tf

from distmnist.cluster import deadlines, errors, probing, stop_request
from distmnist.common import cli, console
from distmnist.exchange.ring import all_reduce, generations, handover, meeting
from distmnist.transport import strategy

if TYPE_CHECKING:
  from distmnist.cluster.cluster import Cluster
  from distmnist.cluster.stop_request import StopRequest
  from distmnist.exchange.ring.votes import Votes


_END_TIMEOUT_SECS = 5.0
# How often a worker that waits for others looks which of them are gone.
_LOOK_SECS = 0.5

_log = logging.getLogger(__name__)


class RingHook(strategy.MemberHook):
  """Equal variables at the start, one common last step, then a barrier."""

  def __init__(self, cluster: Cluster, votes: Votes, stop: StopRequest) -> None:
    """
    Args:
      votes: whose means are built.
    """
    self._cluster = cluster
    self._votes = votes
    self._stop = stop
    self._has_agreed = self._is_amid_step = self._has_left = False
    self._is_leaving = False
    self._meeting: meeting.Meeting | None = None
    self._agreed: meeting.Agreement | None = None
    # Whether this worker has begun to send and take in its generation.
    self._has_begun = False
    self._absences = probing.Absences()
    self.has_values = self.is_given = False

  def begin(self) -> None:
    cluster, variables = self._cluster, tf.global_variables()
    self._fingerprint = all_reduce.fingerprint(variables)
    self._global_step = tf.train.get_global_step()
    # The trailing slash re-enters the name scope of the step.
    with tf.name_scope('ring_allreduce/'), tf.device(cluster.cpu_device):
      nothing = tf.constant(0)
      self._gather_op, self._end_op = (
        # tf.group would have an op on each other worker.
        tf.stack(all_reduce.build_all(cluster, nothing, name)).op
        for name in ('gather', 'end')
      )
      self._handover = handover.Handover(cluster, variables, 'variables')
      self._leave_op = self._votes.build_leave(has_failed=False)
      self._leave_failed_op = self._votes.build_leave(has_failed=True)
    self._queues = generations.Queues(cluster)

  def meet(self, task: Any) -> None:
    if self._meeting is None:
      self._meeting = meeting.Meeting(
        self._cluster, task.server, self._fingerprint
      )
    before = self._agreed
    patience = _Patience(task, has_met=before is not None)
    self._agreed = agreed = self._meeting.hold(
      self._read_step(task.server) if self.has_values else None,
      self._has_begun,
      patience.look,
      self._stop.wait,
    )
    self.is_given = agreed.step is not None
    if before and before.generation == agreed.generation:
      return
    self._has_begun = False
    if before:
      self._queues.drop(before.generation, task.server)
    self._queues.begin(agreed.generation)
    self._handover.take_from(agreed.giver)
    if self.is_given:
      _log.info(_describe(agreed, before, self._cluster.task_index))

  def _read_step(self, server: tf.train.Server) -> int:
    """Returns the global step of this worker's own values, without a session.

    A session of the training has edges to the others.
    """
    variable = self._global_step
    with tf.Graph().as_default() as graph, tf.device(variable.device):
      handle = tf.raw_ops.VarHandleOp(
        dtype=variable.dtype,
        shape=variable.shape,
        shared_name=variable.handle.op.get_attr('shared_name').decode(),
      )
      value = tf.raw_ops.ReadVariableOp(resource=handle, dtype=variable.dtype)
    config = tf.ConfigProto(device_filters=[self._cluster.task_device])
    with tf.Session(server.target, graph, config) as session:
      return int(session.run(value))

  def find_loss(self) -> str:
    # All leave, each in its own time.
    if self._is_leaving or self._meeting is None:
      return ''
    changed = self._meeting.find_changed()
    if changed:
      names = errors.list_some(f'worker {i}' for i in changed)
      return f'{names} began a session anew'
    others = self._cluster.other_addresses('worker')
    gone = self._absences.find_gone(others)
    return f'{errors.list_tasks(gone)} is gone' if gone else ''

  def after_create_session(
    self, session: tf.Session, coord: tf.train.Coordinator
  ) -> None:
    agreed, own = self._agreed, self._cluster.task_index
    if agreed is None:
      raise RuntimeError('a session before the workers have met')
    self._has_agreed = self._is_amid_step = self._is_leaving = False
    self._has_begun = True
    try:
      if own == agreed.giver:
        # It had them, or has restored or initialised them by now.
        self.has_values = True
        gifts = [self._handover.gifts[i] for i in agreed.takers]
        session.run(gifts)
      elif own in agreed.takers:
        # Nobody can be ready in no time.
        secs = max(1.0, self._cluster.start_timeout_secs)
        session.run(self._handover.take, options=_limit(secs))
        self.has_values = True
    except tf.errors.DeadlineExceededError as error:
      # It is there, as all have met.
      raise cli.LostError(
        f'no values came from worker {agreed.giver} within '
        f'{self._cluster.start_timeout_secs:g} s: see its log'
      ) from error

  def before_run(
    self, run_context: tf.train.SessionRunContext
  ) -> tf.train.SessionRunArgs:
    self._is_amid_step = True
    return tf.train.SessionRunArgs(self._votes.mean)

  def after_run(
    self,
    run_context: tf.train.SessionRunContext,
    run_values: tf.train.SessionRunValues,
  ) -> None:
    self._is_amid_step = False
    wants_stop, is_preempted, has_left = self._votes.note(run_values.results)
    if is_preempted:
      self._stop.request(signal.SIGTERM)
    if has_left:
      self._has_left = True
      _log.info(stop_request.LEFT)
    if wants_stop or is_preempted:
      self._has_agreed = self._is_leaving = True
      run_context.request_stop()

  def gather(self, session: tf.Session) -> None:
    """Returns once all workers have come here, after their last step.

    At once if one has left its loop before: it will not come.
    """
    if not self._has_left:
      session.run(self._gather_op)
      self._has_agreed = True

  def end(self, session: tf.Session) -> None:
    """No worker leaves while another may still take from it."""
    options = _limit(_END_TIMEOUT_SECS)
    with contextlib.suppress(tf.errors.OpError):
      if self._is_amid_step:
        # An input has ended in it: the others wait for this worker's part.
        session.run(self._leave_failed_op, options=options)
      elif not self._has_agreed:
        self._leave(session)
      session.run(self._end_op, options=options)

  def _leave(self, session: tf.Session) -> None:
    """Takes part in one more step of the others, unless they break it off."""
    next_look = time.monotonic() + _LOOK_SECS

    def look() -> None:
      nonlocal next_look
      if time.monotonic() < next_look:
        return
      next_look = time.monotonic() + _LOOK_SECS
      loss = ''
      with contextlib.suppress(tf.errors.OpError, RuntimeError):
        loss = self.find_loss()
      if loss:
        raise tf.errors.AbortedError(None, None, loss)

    deadlines.call_and_look(lambda: session.run(self._leave_op), look)


class _Patience:
  """A worker's wait for the others, and what it says meanwhile."""

  def __init__(self, task: Any, has_met: bool) -> None:
    """
    Args:
      task: task.Task, which serves.
      has_met: whether this worker has met the others before, so that their
        addresses are right.
    """
    self._task, self._has_met = task, has_met
    self._secs = task.cluster.start_timeout_secs
    self._wait = console.Wait(self._secs)
    self._next_look = 0.0
    self._lost = {}

  def look(self, missing: Sequence[int]) -> None:
    """Looks at the workers, a list of int, that are not here yet.

    One that beats is alive and may be busy: it will come.

    Raises:
      cli.LostError: the wait is over, and all have met before.
      cli.PassingError: it is over, and none of them has come at all.
      stop_request.StoppedError: this task was asked to stop.
    """
    task = self._task
    task.stop.wait(0)
    addresses = task.cluster.addresses('worker')
    away = {f'worker {i}': addresses[f'worker {i}'] for i in missing}
    if away and all(map(task.watchdog.is_beating, away)):
      self._wait.renew()
      task.stalls.goes_on()
    if self._has_met and time.monotonic() >= self._next_look:
      self._next_look = time.monotonic() + _LOOK_SECS
      self._say_lost(probing.find_silent(away))
    lost = {name: away[name] for name in away if name in self._lost} or away
    names = errors.list_tasks(lost) or 'worker 0'
    if not self._wait.is_over(f'for {names}'):
      return
    if self._has_met:
      raise cli.LostError(
        f'lost {names}: without a ps the others cannot go on; start all tasks '
        'again, and they resume from the last checkpoint if there is a --logdir'
      )
    raise cli.PassingError(
      'not all workers were ready for the first step within '
      f'{self._secs:g} s: no sign of {names}; see their logs'
    )

  def _say_lost(self, lost: Mapping[str, str]) -> None:
    if new := {n: a for n, a in lost.items() if n not in self._lost}:
      whom = 'its successor' if len(new) == 1 else 'their successors'
      _log.info(
        f'lost {errors.list_tasks(new)}: waits for {whom}, up to '
        f'{self._secs:g} s'
      )
    self._lost |= new


def _describe(
  agreed: meeting.Agreement, before: meeting.Agreement | None, own: int
) -> str:
  """Returns what a worker says once all have met, and one has values."""
  source = f'the weights of worker {agreed.giver}'
  if own == agreed.giver:
    source = 'its own weights'
  elif own not in agreed.takers:
    source = 'its own weights, as the others have them'
  new = agreed.find_new(before) if before else [own]
  names = errors.list_some(f'worker {i}' for i in new) or 'each worker'
  verb = 'are' if len(new) > 1 else 'is'
  return f'{names} {verb} back: goes on at step {agreed.step:,} with {source}'


def _limit(secs: float) -> tf.RunOptions:
  """Returns tf.RunOptions by which a session.run fails after `secs`."""
  return tf.RunOptions(timeout_in_ms=round(1000 * secs))
