"""Synchronous aggregation in a session: its first token, its updates, its end.

A worker begins with a token that it did not wait for; which one depends on how
its predecessor ended. The chief has a thread that applies the mean of R
contributions and hands out tokens for as long as its session lives. A task that
leaves releases those that would otherwise wait for it. sync_round.py states the
invariant that all this keeps.
"""

import tensorflow.compat.v1 as tf

from distmnist.exchange import graph_copy
from distmnist.exchange.rounds import (
  round_entry,
  round_leave,
  round_state,
  round_takeover,
  update_thread,
)
from distmnist.transport import strategy

# A worker that has come back concludes that its token was lost with its
# predecessor once it has seen all workers wait for one another at this many
# looks in a row, one second's worth. Looks, not seconds, are counted: a worker
# held up between two looks has not seen all of them wait.
_NUM_ALL_WAIT_LOOKS = 10
_LOOK_SECS = 0.1


class RoundHook(strategy.CenterHook):
  """The tokens at the start and at the end, and the chief's UpdateThread.

  SyncReplicasOptimizer's own hook closes the shared token queue whenever the
  chief stops, and a closed queue stays closed: a restarted chief could not go
  on. It also hands out R tokens at the start, which let a fast worker run
  ahead.
  """

  def __init__(self, the_round, stop, pull):
    """
    Args:
      the_round: sync_round.Round.
      stop: stop_request.StopRequest.
      pull: op or None, see sync_round.Round.hook.
    """
    self._round = the_round
    self._cluster = the_round.cluster
    self._stop = stop
    self._pull_op = pull
    self._first_token = None
    self._session = self._updates = None
    self._leave = round_leave.Leave(the_round, stop)

  def begin(self):
    self._stop.on_request(self._leave_the_wait)
    tokens, token_table = self._round.tokens, self._round.token_table
    token, taken = tokens.begin()
    with tf.control_dependencies([token]):
      self._look = token, token_table.read(), taken
    self._given_token = tf.placeholder(tf.int64, [], 'given_token')
    begun = [
      self._round.token.assign(self._given_token).op,
      token_table.set_has_token(True),
      *tokens.align(self._given_token),
    ]
    with tf.control_dependencies(begun):
      self._begin_with = self._round.entry.read_token()
    self._leave.build()
    if not self._cluster.is_chief:
      return
    device = self._round.global_step.device
    self._update_op = graph_copy.repeat(
      self._round.update_op, self._round.rounds_per_run, device
    )
    self._release_op = tokens.release()
    self._close_op = tokens.close()
    self._take_over_op = round_takeover.build_take_over(self._round)
    self._new_center_op = round_takeover.build_new_center(self._round)

  def on_new_center(self, session):
    self._end_updates()
    self._first_token = session.run(self._new_center_op)

  def after_create_session(self, session, coord):
    self._end_updates()
    self._session = session
    token, is_late = self._first_token, False
    self._first_token = None
    if token is None:
      if self._cluster.is_chief:
        token = session.run(self._take_over_op)
      else:
        token, is_late = self._enter(session)
    given = {self._given_token: token}
    now = session.run(self._begin_with, given)
    if now // round_entry.LIFE > token // round_entry.LIFE:
      # A chief took over in the meantime: what it did is known only now.
      session.run(self._begin_with, given)
    if is_late and self._pull_op is not None:
      session.run(self._pull_op)
    if self._cluster.is_chief:
      # Set before it runs: the next session must be able to end it.
      self._updates = update_thread.UpdateThread(
        self._update_op, session, coord, self._leave.has_left
      )
      self._updates.start()

  def _enter(self, session):
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

  def end(self, session):
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

  def is_whole(self, session):
    return self._leave.is_whole(session)

  def describe_wait(self):
    """Returns a description of the wait in this round, a str."""
    if self._session is None:
      return ''
    text = round_state.describe(self._round, self._session.sess_str)
    if self._updates is not None:
      text += f'; {self._updates.describe()}'
    return text

  def _end_updates(self):
    if self._updates is not None:
      self._updates.end()

  def _leave_the_wait(self):
    """Gets this worker's main thread out of its wait for a token."""
    if self._session is not None:
      self._leave.leave(self._session, self._end_updates)
