"""A queue of JSON messages on one task, which all tasks can reach.

Through it the tasks tell each other what is not part of training: that a worker
is done, that all must stop. The queue is a FIFOQueue with a shared name, so
that it lives as long as the task it is on, needs no initialisation and is in
no checkpoint. Each MessageQueue has its own graph and session.
"""

from __future__ import annotations

import contextlib
import functools
import json
import queue
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import tensorflow.compat.v1 as tf

from distmnist.cluster import deadlines, errors

if TYPE_CHECKING:
  from distmnist.cluster.cluster import Cluster

# What a call may take beyond its own timeout.
_GRACE_SECS = 2.0


class MessageQueue:
  """One end of the queue called `name` on a task."""

  def __init__(
    self, cluster: Cluster, server: tf.train.Server, place: str, name: str
  ) -> None:
    """
    Args:
      cluster: this task's.
      server: of this task.
      place: the task that keeps the queue, such as '/job:ps/task:0'.
      name: the queue's own name.
    """
    with tf.Graph().as_default() as graph:
      with tf.device(f'{place}/device:CPU:0'):
        messages = tf.FIFOQueue(-1, tf.string, (), shared_name=name, name=name)
        self._size, self._take = messages.size(), messages.dequeue()
      with tf.device(cluster.cpu_device):
        self._text = tf.placeholder(tf.string, ())
      with tf.device(f'{place}/device:CPU:0'):
        self._put = messages.enqueue(self._text)
    filters = sorted({place, cluster.task_device})
    config = tf.ConfigProto(device_filters=filters)
    self._open = functools.partial(
      tf.Session, server.target, graph=graph, config=config
    )
    self._session = self._open()

  def send(self, message: Mapping[str, Any], timeout_secs: float = 5.0) -> None:
    """Puts `message` into the queue.

    Raises:
      tf.errors.OpError: the task is gone, or does not answer in time.
    """
    self._run(self._put, timeout_secs, {self._text: json.dumps(message)})

  def take(self, timeout_secs: float = 5.0) -> dict[str, Any]:
    """Returns the next message; raises tf.errors.OpError as `send` does."""
    return json.loads(self._run(self._take, timeout_secs))

  def size(self) -> int:
    """Returns how many messages wait; raises as `send` does."""
    return int(self._run(self._size, 5.0))

  def _run(
    self,
    fetch: tf.Operation | tf.Tensor,
    timeout_secs: float,
    feed: Mapping[tf.Tensor, str] | None = None,
  ) -> Any:
    session = self._session
    options = tf.RunOptions(timeout_in_ms=int(timeout_secs * 1000))
    try:
      return deadlines.call(
        lambda: session.run(fetch, feed, options), timeout_secs + _GRACE_SECS
      )
    except errors.GONE:
      # A task that has restarted does not know the old session.
      self.close()
      self._session = self._open()
      raise
    except deadlines.StillRunningError:
      self._session = self._open()  # The old one is in use, perhaps for ever.
      raise

  def listen(self) -> queue.Queue[dict[str, Any]]:
    """Returns a queue that a thread fills with the messages.

    The thread ends with `close`, or with the task. A message that is on its way
    at that moment may be lost.
    """
    received: queue.Queue[dict[str, Any]] = queue.Queue()

    def receive() -> None:
      # RuntimeError is a session that was closed between two messages.
      with contextlib.suppress(tf.errors.OpError, RuntimeError):
        take = self._session.make_callable(self._take)
        while True:
          received.put(json.loads(take()))

    threading.Thread(target=receive, daemon=True).start()
    return received

  def close(self) -> None:
    with contextlib.suppress(deadlines.StillRunningError):
      deadlines.call(functools.partial(_close, self._session), _GRACE_SECS)

  def __enter__(self) -> MessageQueue:
    return self

  def __exit__(self, *_: object) -> None:
    self.close()


def _close(session: tf.Session) -> None:
  with contextlib.suppress(tf.errors.OpError):
    session.close()
