"""How a worker waits for the end of a round that it may be too late for.

A worker whose gradients are in takes one token of each unit and one of the
round. With R < N the others go on without a worker that is late. It first waits
for the token of the round, takes all there are, and empties its unit queues:
what comes after that goes with the next round. If a token of that next round
was among those it took, that round is full, and the worker will be late again.
"""

import tensorflow.compat.v1 as tf


class LateWait:
  """The waits in a step of a worker that may be late."""

  def __init__(self, own, device, staleness):
    """
    Args:
      own: tf.FIFOQueue, the tokens of the round for this worker.
      device: str, where that queue is.
      staleness: int64 scalar tensor there, 0 if the worker is not late.
    """
    self._own = own
    with tf.device(device):
      is_late = staleness > 0
      first = own.dequeue_many(tf.cast(is_late, tf.int32))
      with tf.control_dependencies([first]):
        rest = own.dequeue_many(tf.where(is_late, own.size(), 0))
      self._taken = tf.concat([first, rest], 0)
      with tf.control_dependencies([self._taken]):
        self._is_late = tf.identity(is_late)

  def take_of_unit(self, queue):
    """Returns the op that takes one token of a unit, or if late all there are.

    Args:
      queue: tf.FIFOQueue on the current device.
    """
    is_late = tf.identity(self._is_late)
    with tf.control_dependencies([is_late]):
      return queue.dequeue_many(tf.where(is_late, queue.size(), 1)).op

  def take(self):
    """Returns the newest token of the round, int64 scalar tensor."""
    own = self._own.dequeue_many(tf.where(self._is_late, 0, 1))
    return tf.concat([self._taken, own], 0)[-1]
