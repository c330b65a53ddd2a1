"""The chief's thread that applies the updates of synchronous aggregation."""

import contextlib
import threading

import tensorflow.compat.v1 as tf

from distmnist import tf_internals
from distmnist.cluster import errors


class UpdateThread:
  """Runs an update repeatedly, in a session that can be closed on its own.

  The thread is not the coordinator's: close() would wait for it, and it for a
  contribution that no worker will send. Where there is a server, it has its own
  session, which can be closed before the other one.
  """

  def __init__(self, update_op, session, coord, has_left):
    """
    Args:
      update_op: tf.Operation, which waits for contributions and applies them.
      session: tf.Session of the chief.
      coord: tf.train.Coordinator of that session.
      has_left: threading.Event, set when the training is over.
    """
    self._update_op = update_op
    self._session = session
    self._coord = coord
    self._has_left = has_left
    self._num_runs = 0
    self._has_ended = False
    self._updates = session
    if session.sess_str:
      self._updates = tf.Session(
        session.sess_str, session.graph, tf_internals.get_config(session)
      )
    self._thread = threading.Thread(target=self._run, daemon=True)

  def start(self):
    self._thread.start()

  def end(self):
    """Ends the updates: the thread no longer waits for contributions."""
    self._has_ended = True
    if self._updates is not self._session:
      self._updates.close()

  def describe(self):
    """Returns what the thread has done and whether it is alive, a str."""
    thread = 'goes on' if self._thread.is_alive() else 'has ended'
    return f'{self._num_runs} runs of updates here, whose thread {thread}'

  def _run(self):
    try:
      update = self._updates.make_callable(self._update_op)
      with errors.naming_losses():
        while not self._is_over():
          update()
          self._num_runs += 1
    except (tf.errors.OpError, RuntimeError) as error:
      if self._is_over():
        return  # Training is over, or the session is being recreated.
      # The main thread may wait for a token: closing the session wakes it,
      # and MonitoredSession recovers from the error.
      with contextlib.suppress(Exception):
        self._coord.request_stop(error)
        self._session.close()

  def _is_over(self):
    return (
      self._has_ended or self._has_left.is_set() or self._coord.should_stop()
    )
