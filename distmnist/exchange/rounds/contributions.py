"""What a worker contributes to a round, part by part, and none of it twice.

A part is an accumulator, or several whose tensors travel as one message. Its ps
notes the token of each worker's last contribution. If a worker is lost in
mid-push, its successor begins with the same token and contributes only what is
missing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

import tensorflow.compat.v1 as tf

from distmnist.exchange.rounds import round_entry
from distmnist.transport import ps_state, sums

if TYPE_CHECKING:
  from distmnist.cluster.cluster import Cluster
  from distmnist.exchange.rounds.sync_round import Round


class Accumulator(tf.ConditionalAccumulator):
  """Takes tensors of a dtype and gives their mean, of the same dtype.

  It adds up as sums.py says.
  """

  def __init__(
    self,
    dtype: tf.DType,
    shape: Sequence[int] | tf.TensorShape,
    shared_name: str,
  ) -> None:
    """
    Args:
      shared_name: the same for all workers.
    """
    self._given_dtype = dtype
    super().__init__(sums.choose_dtype(dtype), shape, shared_name)

  def apply_grad(
    self,
    grad: tf.Tensor,
    local_step: int | tf.Tensor = 0,
    name: str | None = None,
  ) -> tf.Operation:
    grad = tf.cast(grad, self.dtype)
    return super().apply_grad(grad, local_step, name)

  def take_grad(self, num_required: int, name: str | None = None) -> tf.Tensor:
    mean = super().take_grad(num_required, name)
    return tf.cast(mean, self._given_dtype)


def make_accumulators(
  shards: Sequence[tf.Variable],
) -> list[tuple[tf.ConditionalAccumulator, str]]:
  """Returns a list of (Accumulator, device), one per shard."""
  accumulators = []
  for i, shard in enumerate(shards):
    with tf.device(shard.device):
      made = Accumulator(shard.dtype, shard.shape, f'round/contributions_{i}')
    accumulators.append((made, shard.device))
  return accumulators


def make_weights(
  weight: tf.Tensor, devices: Iterable[str]
) -> tuple[list[tuple[Accumulator, str]], list[tuple[tf.Tensor, None]]]:
  """Returns accumulators of the workers' weights, and what they take.

  Args:
    weight: float32 scalar tensor, this worker's; see Strategy.weigh_by.
    devices: where each accumulator is to be.

  Returns:
    (list of (Accumulator, device), list of (weight on that device, None)).
  """
  accumulators, pushed = [], []
  for i, device in enumerate(devices):
    with tf.device(device):
      made = Accumulator(tf.float32, [], f'round/weights_{i}')
      pushed.append((tf.identity(weight), None))
    accumulators.append((made, device))
  return accumulators, pushed


class GivenParts:
  """The token with which each worker has given each part, on each ps.

  A table needs no initialisation and is in no checkpoint.

  Attributes:
    places: by device, the parts there.
  """

  def __init__(self, cluster: Cluster, devices: Sequence[str]) -> None:
    """
    Args:
      devices: the device of each part.
    """
    self._devices = devices
    self._num_workers = cluster.num_workers
    self._tables, self._never, self._keys = {}, {}, []
    self.places = {}
    for part, place in enumerate(devices):
      self.places.setdefault(place, []).append(part)
    for place in self.places:
      with tf.device(place):
        self._tables[place] = ps_state.Table('round/given')
        self._never[place] = tf.constant(round_entry.NEVER_IN, tf.int64)
    # Made here, as under a lock each would wait for a message of its own.
    for part, place in enumerate(devices):
      with tf.device(place):
        key = self._make_key(part, cluster.task_index)
        self._keys.append(tf.constant(key, tf.int64))

  def read(self, part: int, ops: Sequence[tf.Tensor]) -> tf.Tensor:
    """Returns with which token this worker contributed last, int64 scalar.

    Args:
      ops: those of the next contribution, which must arrive first.
    """
    place = self._devices[part]
    with tf.device(place), tf.control_dependencies(ops):
      return self._tables[place].find(self._keys[part], self._never[place])

  def find(self, place: str, worker: int) -> tf.Tensor:
    """Returns with which token `worker` contributed last to each part at a ps.

    Args:
      place: the device of the ps.

    Returns:
      int64 tensor like `places[place]`.
    """
    keys = [self._make_key(part, worker) for part in self.places[place]]
    with tf.device(place):
      return self._tables[place].find(keys, self._never[place])

  def give_once(
    self,
    part: int,
    last: tf.Tensor,
    token: tf.Tensor,
    build: Callable[[tf.Tensor], list[tf.Operation]],
  ) -> tf.Operation:
    """Returns the op by which this worker contributes to a part.

    Args:
      last: int64 scalar tensor, what `read` returned.
      token: int64 scalar tensor, with which it contributes.
      build: callable(token) -> list of ops that contribute with that token,
        which is NEVER_IN if a predecessor has already contributed.
    """
    place = self._devices[part]
    with tf.device(place):
      once = tf.where(tf.equal(last, token), self._never[place], token)
      with tf.control_dependencies(build(once)):
        return self._tables[place].insert(self._keys[part], token)

  def forget(self, place: str) -> tf.Operation:
    """Returns the op that forgets what was contributed at a ps.

    When the lives of the rounds start over, old tokens recur.
    """
    keys = [
      self._make_key(part, worker)
      for part in self.places[place]
      for worker in range(self._num_workers)
    ]
    with tf.device(place):
      never = tf.fill([len(keys)], self._never[place])
      return self._tables[place].insert(keys, never)

  def _make_key(self, part: int, worker: int) -> int:
    return part * self._num_workers + worker


class Contribution:
  """The tensors of one contribution, and what was given before it."""

  def __init__(
    self, the_round: Round, tensors: Sequence[tf.Tensor | tf.IndexedSlices]
  ) -> None:
    """To be made before a place in the round is asked for, under a lock.

    Args:
      tensors: one for each accumulator, on its ps.
    """
    self._accumulators = the_round.accumulators
    self._parts, self._given = the_round.parts, the_round.given
    self._tensors = tensors
    if self._given:
      self._last = [
        self._given.read(number, [tensors[i] for i in part])
        for number, part in enumerate(self._parts)
      ]

  def apply(self, token: tf.Tensor) -> list[tf.Operation]:
    """Returns the ops by which the accumulators take the tensors.

    Args:
      token: int64 scalar tensor. What is older than an accumulator's step is
        dropped, and so is what this worker has given with the same token.
    """
    applied = [None] * len(self._tensors)
    for number, part in enumerate(self._parts):

      def build(
        token: tf.Tensor, part: Sequence[int] = part
      ) -> list[tf.Operation]:
        return [self._apply_one(i, token) for i in part]

      if self._given:
        ops = [self._given.give_once(number, self._last[number], token, build)]
        ops *= len(part)
      else:
        ops = build(token)
      for i, op in zip(part, ops, strict=True):
        applied[i] = op
    return applied

  def _apply_one(self, i: int, token: tf.Tensor) -> tf.Operation:
    accumulator, place = self._accumulators[i]
    with tf.device(place):
      return accumulator.apply_grad(self._tensors[i], token)


def build_is_any_taken(
  the_round: Round, given: GivenParts, token: tf.Tensor
) -> tf.Tensor:
  """Returns whether an update has begun, a bool scalar tensor; if all give.

  Each shard is updated once its own accumulator has all contributions, even
  while others are still pushed or applied. Nothing is noted for this: what the
  chief has given to a part with the current token, and what is no longer in the
  accumulator, has been taken for the update.

  Args:
    given: that of the round.
    token: int64 scalar tensor, the current one.
  """
  are_taken = []
  for place, numbers in given.places.items():
    with tf.device(place):
      # Of the accumulators of a part one may be taken before another.
      parts = [the_round.parts[number] for number in numbers]
      of_chief = tf.repeat(
        given.find(place, worker=0), [len(part) for part in parts]
      )
      accumulators = [the_round.accumulators[i][0] for p in parts for i in p]
      counts = tf.stack([x.num_accumulated() for x in accumulators])
      is_taken = tf.equal(of_chief, tf.identity(token)) & tf.equal(counts, 0)
      are_taken.append(tf.reduce_any(is_taken))
  with tf.device(the_round.global_step.device):
    return tf.reduce_any(tf.stack(are_taken))
