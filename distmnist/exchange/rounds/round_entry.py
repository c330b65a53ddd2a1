"""The contributions that enter a round: ps 0 decides once, by their tokens.

A token is life * 2^40 + global_step. A life of the rounds ends when a chief
takes over: contributions already made in it are thrown away, and those that
still arrive are dropped, as their token is smaller than what the accumulators
then ask for. So a chief need not know which workers had contributed, were about
to, or had died: each worker gets a token of the new life, and none contributes
twice to a round of that life.

With R = N workers no contribution is late. Otherwise the first R are chosen
under a lock beside the global_step, for all shards at once: left alone, each
accumulator would take its own first R, and any others that arrive before the
chief has asked for the mean. With R < N these are of R different workers: the
table records with which token each worker was last chosen. With R > N a worker
is chosen several times.

Where all shards are updated together, a worker is chosen once its whole
contribution has arrived, and the lock is held while it is added up: what a
worker's death cuts off is not counted, and another takes its place.

Where each is updated as soon as its own contributions are in, a worker asks for
a place once its gradients are computed, before it pushes them. So a shard need
not wait for the others to know whether a gradient counts. Nor can one that
counts be of shards of two updates: no shard is updated before R workers have a
place, and a worker that asks after that gets none. A place belongs to a
worker's index: if a worker is lost with its place, the round waits for its
successor, which pushes what its predecessor had not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import tensorflow.compat.v1 as tf

from distmnist.exchange.center import ps_lock
from distmnist.transport import ps_state

if TYPE_CHECKING:
  from distmnist.cluster.cluster import Cluster


LIFE = 1 << 40
# The keys of the table: the number of lives so far; the number of contributions
# that have entered, R * global_step at the start of a round; the life in which
# the updates have ended; that in which no more contributions enter; the last
# one that a chief began to prepare; and from FIRST_WORKER on the token with
# which each worker entered last.
LIVES, NUM_IN, ENDED, FULL, TRIED, FIRST_WORKER = range(6)
# Older than any token: an accumulator drops it.
NEVER_IN = -1


def step_of(token: tf.Tensor) -> tf.Tensor:
  """Returns the global_step of a token, int64 tensor."""
  return token % LIFE


def correct(
  staleness: tf.Tensor | None, own_token: tf.Tensor, new_token: tf.Tensor
) -> tf.Tensor:
  """Returns a contribution's staleness, given the next token, int64 scalar.

  Args:
    staleness: int64 scalar tensor, what `Entry.contribute` returned, or None.
    own_token, new_token: int64 scalar tensors, the contribution's token and
      the next one.
  """
  is_in = step_of(new_token) > step_of(own_token)
  if staleness is None:
    return 1 - tf.cast(is_in, tf.int64)
  # It entered a round that another chief then restarted.
  is_lost = (new_token // LIFE > own_token // LIFE) & ~is_in
  return tf.maximum(staleness, tf.cast(is_lost, tf.int64))


class Entry:
  """The lives of the rounds and the contributions to the open round, on a ps.

  A table holds them; it needs no initialisation and is in no checkpoint.
  """

  def __init__(
    self,
    cluster: Cluster,
    num_contributions: int,
    global_step: tf.Variable,
    has_places: bool = False,
  ) -> None:
    """
    Args:
      num_contributions: R.
      global_step: int64 scalar variable; the table is placed beside it.
      has_places: whether a worker asks for a place before it pushes; only with
        R <= N.
    """
    self._num_contributions = num_contributions
    self._has_places = has_places
    self._global_step = global_step
    self.is_lock_step = num_contributions == cluster.num_workers
    self._enters_once = num_contributions <= cluster.num_workers
    self._own_key = FIRST_WORKER + cluster.task_index
    with tf.device(global_step.device):
      self._table = ps_state.Table('round/entry')
    if not self.is_lock_step:
      self._lock = ps_lock.Lock(global_step.device, 'entry_lock')

  def read_token(self) -> tf.Tensor:
    """Returns the token for a worker that begins now, int64 scalar tensor."""
    with tf.device(self._global_step.device):
      return self._read_life() + self._global_step.read_value()

  def contribute(
    self, own_token: tf.Tensor, apply: Callable[[tf.Tensor], list[tf.Operation]]
  ) -> tuple[tf.Tensor | None, list[tf.Operation]]:
    """Contributes to the round of `own_token`, if it is open and not full.

    Args:
      own_token: int64 scalar tensor on this ps. Known once the gradients are
        computed; without places, once all of them have arrived.
      apply: callable(local_step) -> list of ops that accumulate; local_step
        is an int64 scalar tensor.

    Returns:
      (staleness, ops): int64 scalar tensor, 0 if the contribution is in,
      else the number of rounds it missed, or 1 if R <= N and this worker is in
      that round already; None in lock-step, where the next token tells. ops
      end the contribution; where each shard has its own, they are like the
      accumulators.
    """
    if self.is_lock_step:
      return None, apply(own_token)
    never = tf.constant(NEVER_IN, tf.int64)
    if self._has_places:
      staleness = self._run_locked(lambda: self._take_place(own_token))
      with tf.device(staleness.device):
        local_step = tf.where(tf.equal(staleness, 0), own_token, never)
      return staleness, apply(local_step)

    def enter() -> tf.Tensor:
      # A worker killed here may have contributed without being counted.
      num_in, open_step = self._find_open(self._global_step.read_value())
      is_open = tf.equal(own_token, self._read_life() + open_step)
      is_in = is_open & ~self._is_full()
      last = self._find(self._own_key)
      if self._enters_once:
        is_in &= tf.not_equal(own_token, last)
      with tf.control_dependencies(apply(tf.where(is_in, own_token, never))):
        return self._count(own_token, is_in, is_in, num_in, open_step, last)

    staleness = self._run_locked(enter)
    return staleness, [staleness.op]

  def _take_place(self, own_token: tf.Tensor) -> tf.Tensor:
    """Returns the staleness; 0 as well if this worker has a place already."""
    step, life = self._global_step.read_value(), self._read_life()
    num_in, open_step = self._find_open(step)
    last = self._find(self._own_key)
    is_mine = tf.equal(own_token, last) & tf.equal(own_token, life + step)
    is_free = tf.equal(own_token, life + open_step) & ~self._is_full()
    is_new = is_free & ~is_mine
    is_in = is_mine | is_free
    return self._count(own_token, is_in, is_new, num_in, open_step, last)

  def _count(
    self,
    own_token: tf.Tensor,
    is_in: tf.Tensor,
    is_new: tf.Tensor,
    num_in: tf.Tensor,
    open_step: tf.Tensor,
    last: tf.Tensor,
  ) -> tf.Tensor:
    """Returns the staleness, once the contribution is counted if it is new."""
    counted = self._set(
      {
        NUM_IN: num_in + tf.cast(is_new, tf.int64),
        self._own_key: tf.where(is_in, own_token, last),
      }
    )
    missed = tf.maximum(open_step - step_of(own_token), 1)
    with tf.control_dependencies([counted]):
      return tf.where(is_in, tf.zeros_like(missed), missed)

  def begin_life(
    self, prepare: Callable[[tf.Tensor], tf.Operation]
  ) -> tf.Tensor:
    """Begins a new life of the rounds; only the chief may run it.

    Args:
      prepare: callable(token) -> op, run with the first token of that life
        before any worker can begin with it.

    Returns:
      That token, int64 scalar tensor.
    """

    def begin() -> tf.Tensor:
      # A chief may have been lost that had prepared a life and not begun it.
      life = tf.reduce_max(self._find([LIVES, TRIED])) + 1
      with tf.control_dependencies([self._set({TRIED: life})]):
        step = self._global_step.read_value()
        token = life * LIFE + step
      with tf.control_dependencies([prepare(token)]):
        begun = self._set({LIVES: life, NUM_IN: step * self._num_contributions})
      with tf.control_dependencies([begun]):
        return tf.identity(token)

    if self.is_lock_step:
      with tf.device(self._global_step.device):
        return begin()
    return self._run_locked(begin)

  def build_end(self) -> tuple[tf.Tensor, tf.Operation]:
    """Returns (is_ended, op): whether the chief has ended the updates.

    is_ended: bool scalar tensor. op: notes that it has, for the current life.
    """
    with tf.device(self._global_step.device):
      lives = self._find(LIVES)
      return tf.equal(self._find(ENDED), lives), self._set({ENDED: lives})

  def build_full(self) -> tf.Operation:
    """Returns the op after which no more contributions enter in this life.

    Where all give, those of the open round still do.
    """
    with tf.device(self._global_step.device):
      return self._set({FULL: self._find(LIVES)})

  def is_complete(self) -> tf.Tensor:
    """Returns whether the open round has all R, and is not yet counted.

    Where all give, this is not known.
    """

    def look() -> tf.Tensor:
      step = self._global_step.read_value()
      return self._find_open(step)[1] > step

    return self._run_locked(look)

  def _read_life(self) -> tf.Tensor:
    """Returns the life's part of a token, int64 scalar tensor."""
    return self._find(LIVES) * LIFE

  def _find_open(self, step: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns (contributions that are in, step of the first round with room).

    Args:
      step: int64 scalar tensor, the global_step.
    """
    num_in = tf.maximum(self._find(NUM_IN), self._num_contributions * step)
    return num_in, num_in // self._num_contributions

  def _is_full(self) -> tf.Tensor:
    return tf.equal(self._find(FULL), self._find(LIVES))

  def _run_locked(self, build: Callable[[], tf.Tensor]) -> tf.Tensor:
    with tf.device(self._global_step.device):
      return self._lock.execute(build)

  def _find(self, key: int | Sequence[int]) -> tf.Tensor:
    return self._table.find(key, 0)

  def _set(self, values: Mapping[int, tf.Tensor]) -> tf.Operation:
    return self._table.insert(list(values), tf.stack(list(values.values())))
