"""How a worker that is asked to stop gets out of a round.

Its main thread may be waiting there for a token that never comes: others may be
lost, or asked to stop as well. A round must not be left while some shards are
an update ahead of others, as the chief would then save that state: for part of
the time that the stop leaves, the others keep pushing what is missing, and the
chief applies it. The chief then ends the updates and notes that the others need
not stay. With R other than n, a contribution comes whole or not at all: none
enters any more, and the chief applies the R that are in, if there are.
"""

import contextlib
import threading
import time

import tensorflow.compat.v1 as tf

from distmnist.exchange.rounds import token_barrier

_LOOK_SECS = 0.1
# Part of the time left until the forced end; the chief has yet to save.
_PART_OF_STOP = 0.5
# At the end of a training with backup workers, which may be in mid-push.
_END_SECS = 30.0


class Leave:
  """The end of the rounds for one worker.

  Attributes:
    has_left: threading.Event, set when its training is over.
  """

  def __init__(self, the_round, stop):
    """
    Args:
      the_round: sync_round.Round.
      stop: stop_request.StopRequest.
    """
    self._round = the_round
    self._is_chief = the_round.cluster.is_chief
    self._stop = stop
    self.has_left = threading.Event()
    self._is_whole = None
    self._has_ended = False

  def build(self):
    """Builds what it runs; to be called while the graph is still open."""
    the_round = self._round
    self._is_whole = the_round.build_is_whole()
    if self._is_chief:
      self._offer_op = the_round.tokens.offer_own()
    self._is_over, self._end_op = the_round.entry.build_end()
    self._full_op = the_round.entry.build_full()

  def is_whole(self, session):
    """Whether all shards are at the same update; a bool."""
    return bool(session.run(self._is_whole))

  def leave(self, session, end_updates):
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
    # one has left the wait.
    while not self.has_left.wait(token_barrier.OFFER_SECS):
      session.run(self._offer_op)

  def finish_round(self, session, end_updates):
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

  def _wait_until(self, is_so):
    secs = _END_SECS
    if self._stop.is_requested:
      secs = _PART_OF_STOP * self._stop.secs_left
    end = time.monotonic() + secs
    while not is_so() and time.monotonic() < end:
      if self.has_left.wait(_LOOK_SECS):
        return
