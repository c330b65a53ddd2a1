"""Synchronous aggregation in a session: how a worker begins, leads and leaves.

A worker begins with a token that it did not wait for; which one depends on how
its predecessor ended. The chief has a thread that applies the mean of R
contributions and hands out tokens for as long as its session lives.

A chief takes over: whatever the previous one left in the accumulators is thrown
away, and each worker gets one token of a new life (round_entry.py). So none
contributes twice to a round, whatever it had contributed or was about to.

A task that leaves releases those that would otherwise wait for it. One that is
asked to stop may itself be waiting for a token that never comes: others may be
lost, or asked to stop as well. A round must not be left while some shards are
an update ahead of others, as the chief would then save that state: for part of
the time that the stop leaves, the others keep pushing what is missing, and the
chief applies it. The chief then ends the updates and notes that the others need
not stay. With R other than N, a contribution comes whole or not at all: none
enters any more, and the chief applies the R that are in, if there are.

sync_round.py states the invariant that all this keeps.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import tensorflow.compat.v1 as tf

from distmnist import tf_internals
from distmnist.cluster import errors
from distmnist.exchange import graph_copy
from distmnist.exchange.rounds import round_entry, round_waits
from distmnist.exchange.rounds import tokens as tokens_lib
from distmnist.tables import sparse_sum
from distmnist.transport import strategy

if TYPE_CHECKING:
  from distmnist.cluster.stop_request import StopRequest
  from distmnist.exchange.rounds.sync_round import Round


# A worker that has come back concludes that its token was lost with its
# predecessor once it has seen all workers wait for one another at this many
# looks in a row, one second's worth. Looks, not seconds, are counted: a worker
# held up between two looks has not seen all of them wait.
_NUM_ALL_WAIT_LOOKS = 10
_LOOK_SECS = 0.1
# Part of the time left until the forced end; the chief has yet to save.
_PART_OF_STOP = 0.5
# At the end of a training with backup workers, which may be in mid-push.
_END_SECS = 30.0


class RoundHook(strategy.CenterHook):
  """The tokens at the start and at the end, and the chief's UpdateThread.

  SyncReplicasOptimizer's own hook closes the shared token queue whenever the
  chief stops, and a closed queue stays closed: a restarted chief could not go
  on. It also hands out R tokens at the start, which let a fast worker run
  ahead.
  """

  def __init__(
    self, the_round: Round, stop: StopRequest, pull: tf.Operation | None
  ) -> None:
    """
    Args:
      pull: see sync_round.Round.hook.
    """
    self._round = the_round
    self._cluster = the_round.cluster
    self._stop = stop
    self._pull_op = pull
    self._first_token = None
    self._session = self._updates = None
    self._leave = Leave(the_round, stop)

  def begin(self) -> None:
    self._stop.on_request(self._leave_the_wait)
    tokens, token_table = self._round.tokens, self._round.token_table
    token, taken = tokens.begin()
    with tf.control_dependencies([token]):
      self._look = token, token_table.read(), taken
    self._given_token = tf.placeholder(tf.int64, [], 'given_token')
    self._begin_op = tf.group(
      self._round.token.assign(self._given_token),
      token_table.set_has_token(True),
      *tokens.rejoin(),
    )
    self._leave.build()
    if not self._cluster.is_chief:
      return
    device = self._round.global_step.device
    self._update_op = graph_copy.repeat(
      self._round.update_op, self._round.rounds_per_run, device
    )
    self._release_op = tokens.release()
    self._close_op = tokens.close()
    self._take_over_op = build_take_over(self._round)
    self._new_center_op = build_new_center(self._round)

  def on_new_center(self, session: tf.Session) -> None:
    self._end_updates()
    self._first_token = session.run(self._new_center_op)

  def after_create_session(
    self, session: tf.Session, coord: tf.train.Coordinator
  ) -> None:
    self._end_updates()
    self._session = session
    token, is_late = self._first_token, False
    self._first_token = None
    if token is None:
      if self._cluster.is_chief:
        token = session.run(self._take_over_op)
      else:
        token, is_late = self._enter(session)
    session.run(self._begin_op, {self._given_token: token})
    if is_late and self._pull_op is not None:
      session.run(self._pull_op)
    if self._cluster.is_chief:
      # Set before it runs: the next session must be able to end it.
      self._updates = UpdateThread(
        self._update_op, session, coord, self._leave.has_left
      )
      self._updates.start()

  def _enter(self, session: tf.Session) -> tuple[int, bool]:
    """Returns (token, whether the center may have moved on since the pull).

    In lock-step a worker waits for the token that its predecessor waited for.
    With R < N the others may go on without it, so it begins at once.
    """
    num_looks, waits = 0, self._round.entry.is_lock_step
    while True:
      token, token_table, taken = session.run(self._look)
      if taken.size:
        return max(token, *taken), True
      if not waits:
        return token, True
      # The first worker of its index, or its predecessor had a token.
      if token_table[self._cluster.task_index] != 0:
        return token, num_looks > 0
      num_looks = 0 if any(token_table > 0) else num_looks + 1
      if num_looks == _NUM_ALL_WAIT_LOOKS:
        return token, True
      self._stop.wait(_LOOK_SECS)

  def end(self, session: tf.Session) -> None:
    """Releases the workers that still wait for a token.

    They may contribute again, as nothing more will be applied.
    """
    if self._cluster.is_chief:
      self._leave.finish_round(session, self._end_updates)
    self._leave.has_left.set()
    if self._cluster.is_chief:
      session.run(self._release_op)
      if not self._stop.is_requested:
        session.run(self._close_op)

  def is_whole(self, session: tf.Session) -> bool:
    return self._leave.is_whole(session)

  def describe_wait(self) -> str:
    """Returns a description of the wait in this round."""
    if self._session is None:
      return ''
    text = round_waits.describe(self._round, self._session.sess_str)
    if self._updates is not None and not self._updates.is_alive:
      text += '; but this chief applies no more'
    return text

  def _end_updates(self) -> None:
    if self._updates is not None:
      self._updates.end()

  def _leave_the_wait(self) -> None:
    """Gets this worker's main thread out of its wait for a token."""
    if self._session is not None:
      self._leave.leave(self._session, self._end_updates)


class UpdateThread:
  """Runs an update repeatedly, in a session that can be closed on its own.

  The thread is not the coordinator's: close() would wait for it, and it for a
  contribution that no worker will send. Where there is a server, it has its own
  session, which can be closed before the other one.
  """

  def __init__(
    self,
    update_op: tf.Operation,
    session: tf.Session,
    coord: tf.train.Coordinator,
    has_left: threading.Event,
  ) -> None:
    """
    Args:
      update_op: waits for contributions and applies them.
      session: tf.Session of the chief.
      coord: tf.train.Coordinator of that session.
      has_left: set when the training is over.
    """
    self._update_op = update_op
    self._session = session
    self._coord = coord
    self._has_left = has_left
    self._has_ended = False
    self._updates = session
    if session.sess_str:
      self._updates = tf.Session(
        session.sess_str, session.graph, tf_internals.get_config(session)
      )
    self._thread = threading.Thread(target=self._run, daemon=True)

  def start(self) -> None:
    self._thread.start()

  def end(self) -> None:
    """Ends the updates: the thread no longer waits for contributions."""
    self._has_ended = True
    if self._updates is not self._session:
      self._updates.close()

  @property
  def is_alive(self) -> bool:
    """Whether the updates go on."""
    return self._thread.is_alive()

  def _run(self) -> None:
    try:
      update = self._updates.make_callable(self._update_op)
      with errors.naming_losses():
        while not self._is_over():
          update()
    except (tf.errors.OpError, RuntimeError) as error:
      if self._is_over():
        return  # Training is over, or the session is being recreated.
      # The main thread may wait for a token: closing the session wakes it,
      # and MonitoredSession recovers from the error.
      with contextlib.suppress(Exception):
        self._coord.request_stop(error)
        self._session.close()

  def _is_over(self) -> bool:
    return (
      self._has_ended or self._has_left.is_set() or self._coord.should_stop()
    )


class Leave:
  """The end of the rounds for one worker.

  Attributes:
    has_left: set when its training is over.
  """

  def __init__(self, the_round: Round, stop: StopRequest) -> None:
    """
    Args:
    """
    self._round = the_round
    self._is_chief = the_round.cluster.is_chief
    self._stop = stop
    self.has_left = threading.Event()
    self._is_whole = None
    self._has_ended = False

  def build(self) -> None:
    """Builds what it runs; to be called while the graph is still open."""
    the_round = self._round
    self._is_whole = the_round.build_is_whole()
    if self._is_chief:
      self._offer_op = the_round.tokens.offer_own()
    self._is_over, self._end_op = the_round.entry.build_end()
    self._full_op = the_round.entry.build_full()

  def is_whole(self, session: tf.Session) -> bool:
    """Whether all shards are at the same update; a bool."""
    return bool(session.run(self._is_whole))

  def leave(self, session: tf.Session, end_updates: Callable[[], None]) -> None:
    """Gets the main thread out of its wait; to be called from another thread.

    Args:
      session: tf.Session of that thread.
      end_updates: callable after which the chief applies nothing more.
    """
    with contextlib.suppress(tf.errors.OpError, RuntimeError):
      if self._is_chief:
        self.finish_round(session, end_updates)
      else:
        self._wait_until(lambda: session.run(self._is_over))
    if not self._is_chief:
      if not self.has_left.is_set():
        session.close()
      return
    # The others must not contribute to the round again. Where all share one
    # queue, another worker may take the token: keep offering tokens until this
    # one has left the wait, or its session is lost or closed.
    with contextlib.suppress(tf.errors.OpError, RuntimeError):
      while not self.has_left.wait(tokens_lib.OFFER_SECS):
        session.run(self._offer_op)

  def finish_round(
    self, session: tf.Session, end_updates: Callable[[], None]
  ) -> None:
    """Ends the chief's updates, between two of them if possible.

    Args:
      session, end_updates: see `leave`.
    """
    if self._has_ended:
      end_updates()
      return
    session.run(self._full_op)
    self._wait_until(lambda: self.is_whole(session))
    self._has_ended = True
    end_updates()
    session.run(self._end_op)

  def _wait_until(self, is_so: Callable[[], bool]) -> None:
    secs = _END_SECS
    if self._stop.is_requested:
      secs = _PART_OF_STOP * self._stop.secs_left
    end = time.monotonic() + secs
    while not is_so() and time.monotonic() < end:
      if self.has_left.wait(_LOOK_SECS):
        return


def build_take_over(the_round: Round) -> tf.Tensor:
  """Returns the first token of a new life, once every other worker has one.

  The round restarts in whatever state the old chief left the accumulators,
  even with some of them taken and others not.
  """

  def prepare(token: tf.Tensor) -> tf.Operation:
    ready = [build_emptying(the_round, token)]
    if the_round.tokens.has_own_queue:
      ready.append(the_round.tokens.take_all())
    with tf.control_dependencies(ready):
      return the_round.tokens.make_for_others(token)

  return the_round.entry.begin_life(prepare)


def build_new_center(the_round: Round) -> tf.Tensor:
  """Returns the first token, after which nothing of an earlier center counts.

  All in one run, as each new kind of session.run takes 50 ms to prepare.
  """
  # A worker still waiting in an old session wakes up and finds it broken. The
  # tokens left over are of an old life: a contribution made with one is dropped
  # and does no harm.
  with tf.device(the_round.global_step.device):
    released = tf.cond(
      the_round.entry.read_token() < round_entry.LIFE,
      tf.no_op,
      the_round.tokens.release,
    )
  num_spare = the_round.num_contributions - the_round.cluster.num_workers

  def prepare(token: tf.Tensor) -> tf.Operation:
    ready = [
      build_emptying(the_round, token),
      the_round.token_table.clear(),
      *the_round.tokens.reset(token),
    ]
    if the_round.tokens.has_own_queue:
      ready.append(the_round.tokens.take_all())
    with tf.control_dependencies(ready):
      # With R <= N there is no spare token: this keeps the workers in step.
      if num_spare > 0:
        return the_round.tokens.make([num_spare], token, may_be_closed=True)
      return tf.no_op()

  with tf.control_dependencies([released]):
    return the_round.entry.begin_life(prepare)


def build_emptying(the_round: Round, token: tf.Tensor) -> tf.Operation:
  """Returns the op that throws away what was contributed before `token`.

  Args:
    token: int64 scalar tensor, the first one of a new life.
  """
  emptied = {}
  for accumulator, device in the_round.accumulators:
    with tf.device(device):
      # First, so that no more old contributions come in.
      closed = accumulator.set_global_step(token)
      with tf.control_dependencies([closed]):
        taken = sparse_sum.take_all(accumulator, token)
      # Taking the mean has advanced the step of the accumulator.
      with tf.control_dependencies([taken]):
        done = accumulator.set_global_step(token)
    emptied.setdefault(device, []).append(done)
  if not the_round.given:
    return tf.group(*sum(emptied.values(), []))
  forgotten = []
  for device, done in emptied.items():
    # Last: what was noted but thrown away would otherwise be missing.
    with tf.control_dependencies(done):
      forgotten.append(the_round.given.forget(device))
  return tf.group(*forgotten)
