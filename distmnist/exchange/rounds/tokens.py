"""Tokens: a worker that has none waits for the update that hands them out.

With R <= N each worker has its own queue on the ps; sync_round.py says why.

With R < N rounds end without a slow worker, and the tokens of those rounds are
of no use: a contribution made with one would come too late. So a queue that
still has a token gets no other one, and a worker that has taken a token begins
with the current one. Between the end of a round and its tokens, a slow worker
may thus begin with a token that it is then given again; what it contributes
with that one is dropped, as it is in the round already (round_entry.py).

Where each shard has its own update, a worker waits for each besides: units.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import tensorflow.compat.v1 as tf

from distmnist.exchange.rounds import round_entry
from distmnist.transport import ps_state

if TYPE_CHECKING:
  from distmnist.cluster.cluster import Cluster


# A chief that is asked to stop gets this many tokens at a time: each step left
# in its session.run takes one.
NUM_OFFERED, OFFER_SECS = 16, 0.1


def put_if_empty(
  queues: Sequence[tf.FIFOQueue],
  value: bool | tf.Tensor,
  is_open: bool | tf.Tensor = True,
) -> tf.Operation:
  """Returns the op that puts `value` into each of `queues` that has none.

  Args:
    queues: on the current device.
    value: scalar tensor or bool; the queues are looked at once it is there.
    is_open: bool or bool scalar tensor; if not, nothing is put.
  """
  value = tf.convert_to_tensor(value)
  with tf.control_dependencies([value]):
    sizes = tf.stack([queue.size() for queue in queues])
  numbers = tf.unstack(tf.cast(is_open & tf.equal(sizes, 0), tf.int32))
  return tf.group(
    *(
      queue.enqueue_many([tf.fill([number], value)])
      for queue, number in zip(queues, numbers, strict=True)
    )
  )


def if_open(
  queues: Sequence[tf.FIFOQueue], build: Callable[[], list[tf.Operation]]
) -> tf.Operation:
  """Returns an op that runs the ops of `build` unless `queues` are closed.

  They are all closed at once.
  """
  return tf.cond(queues[0].is_closed(), tf.no_op, lambda: tf.group(*build()))


def close(queues: Sequence[tf.FIFOQueue]) -> tf.Operation:
  """Returns the op that closes `queues`, unless a chief has done so."""
  return if_open(queues, lambda: [queue.close() for queue in queues])


class TokenTable:
  """The workers that have a token, on the ps of the tokens: 1 has one, 0 waits.

  It needs no initialisation, and is empty again after that ps restarts.
  """

  def __init__(self, cluster: Cluster, device: str) -> None:
    """
    Args:
      device: where the tokens are.
    """
    self._device = device
    self._worker = cluster.task_index
    self._num_workers = cluster.num_workers
    with tf.device(device):
      self._table = ps_state.Table('round/token_table')

  def set_has_token(self, has_token: bool) -> tf.Operation:
    """Returns the op that notes whether this worker has a token."""
    with tf.device(self._device):
      return self._table.insert(self._worker, int(has_token))

  def wait_for_token(
    self, take: Callable[[], tf.Tensor], ops: Sequence[tf.Operation | tf.Tensor]
  ) -> tf.Tensor:
    """Returns the next token, waited for once all `ops` have run.

    Args:
      take: callable -> int64 scalar tensor, Tokens.take.
    """
    with tf.device(self._device):
      done = tf.group(*ops)  # One message per ps, not one per op.
    with tf.control_dependencies([done]):
      waits = self.set_has_token(False)
    with tf.control_dependencies([waits]), tf.device(self._device):
      token = take()
    with tf.control_dependencies([token]):
      has_token = self.set_has_token(True)
    with tf.control_dependencies([has_token]), tf.device(self._device):
      return tf.identity(token)

  def read(self) -> tf.Tensor:
    """Returns an int64 tensor [num_workers]: 1, 0, or -1 for not begun yet."""
    with tf.device(self._device):
      return self._table.find(tf.range(self._num_workers, dtype=tf.int64), -1)

  def clear(self) -> tf.Operation:
    """Returns the op that forgets all workers."""
    with tf.device(self._device):
      return self._table.remove(tf.range(self._num_workers, dtype=tf.int64))


class Tokens:
  """The queues on a ps where the workers wait.

  With R <= N each worker has its own. Otherwise all share one, as there are
  more tokens than workers.

  Attributes:
    has_own_queue: whether each worker has a queue of its own.
    own: where this worker waits.
    num_each: how many tokens each queue gets when a round ends.
  """

  def __init__(
    self,
    cluster: Cluster,
    num_contributions: int,
    entry: round_entry.Entry,
    device: str,
  ) -> None:
    """
    Args:
      num_contributions: R.
      device: where the global_step is.
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

  def take(self) -> tf.Tensor:
    """Returns this worker's next token, int64 scalar tensor."""
    return self.own.dequeue()

  def begin(self) -> tuple[tf.Tensor, tf.Tensor]:
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

  def end_round(self) -> tf.Operation:
    """Returns the op that puts the tokens due at the end of a round."""
    return self.make()

  def make(
    self,
    num_each: Sequence[int] | None = None,
    token: tf.Tensor | None = None,
    may_be_closed: bool = False,
  ) -> tf.Operation:
    """Returns the op that puts `num_each` tokens into the queues.

    Args:
      num_each: by default what is due at the end of a round.
      token: int64 scalar tensor; by default the current one.
      may_be_closed: whether closed queues are left alone: a chief that was
        lost at its end has closed them, and the next one finds nothing to do.
    """
    num_each = self.num_each if num_each is None else num_each
    with tf.device(self._device):
      token = self._entry.read_token() if token is None else token

      def put() -> list[tf.Operation]:
        return [
          queue.enqueue_many([tf.fill([number], token)])
          for queue, number in zip(self._queues, num_each, strict=True)
          if number
        ]

      if may_be_closed:
        return if_open(self._queues, put)
      return tf.group(*put())

  def make_for_others(self, token: tf.Tensor) -> tf.Operation:
    """Returns the op that makes a round's tokens for all but this worker."""
    num_each = list(self.num_each)
    num_each[self._index] -= 1
    return self.make(num_each, token, may_be_closed=True)

  def release(self) -> tf.Operation:
    """Returns the op that lets all waiting workers go on, if queues are open.

    Nothing more is applied, or not until each has begun a new session.
    """
    return self.make(may_be_closed=True)

  def rejoin(self) -> list[tf.Operation]:
    """Returns ops after which a worker that begins waits as the others do."""
    return []

  def reset(self, token: tf.Tensor) -> list[tf.Operation]:
    """Returns ops that forget what was done for an earlier center.

    Args:
      token: int64 scalar tensor, the first one of the new center.
    """
    del token
    return []

  def offer_own(self) -> tf.Operation:
    """Returns the op that puts old tokens where this worker waits.

    They make it leave the wait: a contribution with such a token is dropped.
    They are less than 0.
    """
    with tf.device(self._device):
      old = round_entry.step_of(self._entry.read_token()) - round_entry.LIFE
      return self.own.enqueue_many([tf.fill([NUM_OFFERED], old)])

  def take_all(self) -> tf.Tensor:
    """Returns an int64 tensor [n], all tokens taken from the worker's queue."""
    with tf.device(self._device):
      return self.own.dequeue_many(self.own.size())

  def close(self) -> tf.Operation:
    """Returns the op that closes the queues, unless a chief has done so."""
    with tf.device(self._device):
      return close(self._queues)


class NewestTokens(Tokens):
  """The queues of all workers, each with one token at most once a round ends.

  Attributes: those of Tokens.
  """

  def take(self) -> tf.Tensor:
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

  def begin(self) -> tuple[tf.Tensor, tf.Tensor]:
    # The token of a round that ends now is left out, or stays in the queue.
    taken = self.take_all()
    with tf.control_dependencies([taken]):
      return self._entry.read_token(), taken

  def end_round(self) -> tf.Operation:
    # The round must be counted before it is known who still has a token.
    with tf.device(self._device):
      return put_if_empty(self._queues, self._entry.read_token())


def make(
  cluster: Cluster,
  num_contributions: int,
  entry: round_entry.Entry,
  device: str,
) -> Tokens:
  """Returns the Tokens of a round of one unit; arguments as of Tokens."""
  kind = NewestTokens if num_contributions < cluster.num_workers else Tokens
  return kind(cluster, num_contributions, entry, device)
