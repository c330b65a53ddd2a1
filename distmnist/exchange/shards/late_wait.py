"""How a worker waits for the end of a round that it may be too late for.

One whose gradients are in takes one token of each unit, and one of the round.
With R < N the others go on without one that is late. That one waits for the
token of the round first, takes all there are, and empties its queues of units:
what comes then goes with the next round. If one of that next round was among
what it has taken, that round is full, and it will be late again.
"""

import tensorflow.compat.v1 as tf


class LateWait:
  """The waits of a step of a worker, where it may be late."""

  def __init__(self, own, device, staleness):
    """
    Args:
      own: tf.FIFOQueue, the tokens of the round for this worker.
      device: str, where that is.
      staleness: int64 scalar tensor there, 0 for one that is not late.
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
    """Returns the op that takes the tokens of a unit, in place of one.

    Args:
      queue: tf.FIFOQueue on the device of now.
    """
    is_late = tf.identity(self._is_late)
    with tf.control_dependencies([is_late]):
      return queue.dequeue_many(tf.where(is_late, queue.size(), 1)).op

  def take(self):
    """Returns the newest token of the round, int64 scalar tensor."""
    own = self._own.dequeue_many(tf.where(self._is_late, 0, 1))
    return tf.concat([self._taken, own], 0)[-1]
