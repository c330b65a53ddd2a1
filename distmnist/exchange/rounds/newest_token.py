"""Tokens with R < N: a worker that missed rounds begins with the newest one.

Rounds end without a slow worker, and the tokens of those rounds are of no use:
a contribution made with one would come too late. So a queue that still has a
token gets no other one, and a worker that has taken a token begins with the
current one. Between the end of a round and its tokens, a slow worker may thus
begin with a token that it is then given again; what it contributes with that
one is dropped, as it is in the round already (round_entry.py).
"""

import tensorflow.compat.v1 as tf

from distmnist.exchange.rounds import token_barrier


class NewestToken(token_barrier.Tokens):
  """The queues of all workers, each with one token at most once a round ends.

  Attributes: those of token_barrier.Tokens.
  """

  def take(self):
    first = self.own.dequeue()
    # One that is offered goes alone: each step left in a session.run takes one.
    is_offered = first < 0
    with tf.control_dependencies([first]):
      rest = self.own.dequeue_many(tf.where(is_offered, 0, self.own.size()))
    with tf.control_dependencies([rest]):
      now = self._entry.read_token()
    # A token of the next life is here before that life can be read.
    newest = tf.reduce_max(tf.concat([[first, now], rest], 0))
    return tf.where(is_offered, first, newest)

  def begin(self):
    # The token of a round that ends now is left out, or stays in the queue.
    taken = self.take_all()
    with tf.control_dependencies([taken]):
      return self._entry.read_token(), taken

  def end_round(self):
    # The round must be counted before it is known who still has a token.
    with tf.device(self._device):
      token = self._entry.read_token()
      put = []
      for queue in self._queues:
        with tf.control_dependencies([token]):
          is_due = tf.cast(tf.equal(queue.size(), 0), tf.int32)
        put.append(queue.enqueue_many([tf.fill([is_due], token)]))
      return tf.group(*put)


def make_tokens(cluster, num_contributions, entry, device):
  """Returns the Tokens of a round; arguments as of token_barrier.Tokens."""
  make = token_barrier.Tokens
  if num_contributions < cluster.num_workers:
    make = NewestToken
  return make(cluster, num_contributions, entry, device)
