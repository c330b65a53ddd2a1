"""Tokens: a worker that has none waits for the update that hands them out.

With R <= N each worker has its own queue on the ps; sync_round.py says why, and
newest_token.py what is different with R < N.
"""

import tensorflow.compat.v1 as tf

from distmnist.exchange.rounds import round_entry

# A chief that is asked to stop gets this many tokens at a time: each step left
# in its session.run takes one.
NUM_OFFERED, OFFER_SECS = 16, 0.1


class Tokens:
  """The queues on a ps where the workers wait.

  With R <= N each worker has its own. Otherwise all share one, as there are
  more tokens than workers.

  Attributes:
    has_own_queue: bool, whether each worker has a queue of its own.
    own: tf.FIFOQueue, where this worker waits.
    num_each: list of int, how many tokens each queue gets when a round ends.
  """

  def __init__(self, cluster, num_contributions, entry, device):
    """
    Args:
      cluster: cluster.Cluster.
      num_contributions: int, R.
      entry: round_entry.Entry.
      device: str, where the global_step is.
    """
    self._device = device
    self._entry = entry
    self.num_each = [num_contributions]
    self._index = 0
    self.has_own_queue = num_contributions <= cluster.num_workers
    if self.has_own_queue:
      self.num_each = [1] * cluster.num_workers
      self._index = cluster.task_index
    with tf.device(device):
      self._queues = [
        tf.FIFOQueue(
          -1, tf.int64, (), shared_name=f'round/tokens_{i}', name='tokens'
        )
        for i in range(len(self.num_each))
      ]
    self.own = self._queues[self._index]

  def take(self):
    """Returns this worker's next token, int64 scalar tensor."""
    return self.own.dequeue()

  def begin(self):
    """Returns the tokens of a worker that begins, as its queue is emptied.

    Returns:
      (now, taken): int64 scalar tensor, the current token, and int64 tensor
      [n]. It begins with the newest of them.
    """
    # Once a new life's token can be read here, its tokens are in the queues.
    now = self._entry.read_token()
    with tf.control_dependencies([now]):
      if not self.has_own_queue:
        return now, tf.constant([], tf.int64)
      return now, self.take_all()

  def end_round(self):
    """Returns the op that puts the tokens due at the end of a round."""
    return self.make()

  def make(self, num_each=None, token=None, if_open=False):
    """Returns the op that puts `num_each` tokens into the queues.

    Args:
      num_each: list of int; by default what is due at the end of a round.
      token: int64 scalar tensor; by default the current one.
      if_open: whether closed queues are left alone: a chief that was lost at
        its end has closed them, and the next one finds nothing to do.
    """
    num_each = self.num_each if num_each is None else num_each
    with tf.device(self._device):
      token = self._entry.read_token() if token is None else token

      def put():
        return [
          queue.enqueue_many([tf.fill([number], token)])
          for queue, number in zip(self._queues, num_each, strict=True)
          if number
        ]

      return self._if_open(put) if if_open else tf.group(*put())

  def _if_open(self, build):
    """Returns an op that runs the ops of `build` unless the queues are closed.

    They are all closed at once.
    """
    return tf.cond(self.own.is_closed(), tf.no_op, lambda: tf.group(*build()))

  def make_for_others(self, token):
    """Returns the op that makes a round's tokens for all but this worker."""
    num_each = list(self.num_each)
    num_each[self._index] -= 1
    return self.make(num_each, token, if_open=True)

  def release(self):
    """Returns the op that lets all waiting workers go on, if queues are open.

    Nothing more is applied, or not until each has begun a new session.
    """
    return self.make(if_open=True)

  def align(self, token):
    """Returns ops after which a worker that begins with `token` can wait.

    Args:
      token: int64 scalar tensor.
    """
    del token
    return []

  def reset(self, token):
    """Returns ops that forget what was done for an earlier center.

    Args:
      token: int64 scalar tensor, the first one of the new center.
    """
    del token
    return []

  def offer_own(self):
    """Returns the op that puts old tokens where this worker waits.

    They make it leave the wait: a contribution with such a token is dropped.
    They are less than 0.
    """
    with tf.device(self._device):
      old = round_entry.step_of(self._entry.read_token()) - round_entry.LIFE
      return self.own.enqueue_many([tf.fill([NUM_OFFERED], old)])

  def take_all(self):
    """Returns an int64 tensor [n], all tokens taken from the worker's queue."""
    with tf.device(self._device):
      return self.own.dequeue_many(self.own.size())

  def close(self):
    """Returns the op that closes the queues, unless a chief has done so."""
    with tf.device(self._device):
      return self._if_open(lambda: [queue.close() for queue in self._queues])
