"""Tokens of a round whose shards are updated one by one.

A unit is what travels as one message: a large shard, or several small ones of
one ps. As soon as R gradients of a unit are in, it is updated, and each worker
gets a token of that unit, for which it waits before pulling the unit. The token
of the round (token_barrier.py) comes when all units are updated.

The invariant: a worker's queue of a unit gets one token for each token of the
round that the worker gets, whoever hands it out; the unit's comes first. As a
task may die between the two, the ps of a unit notes how far the unit is
(unit_progress.py).

With R < N a unit's queue that still has a token gets no other one. The token
would be of a round that is full, and so without the worker that has not taken
the last one: it will be late, and empty the queue (late_wait.py). One that is
gone for good would otherwise leave a token for each unit and round.

A worker that begins empties its queues and has the tokens due to it put in,
under the lock under which tokens are handed out.
"""

import tensorflow.compat.v1 as tf

from distmnist.exchange.rounds import round_entry, token_barrier
from distmnist.exchange.shards import late_wait, unit_progress, unit_queues


class ShardTokens(token_barrier.Tokens):
  """The tokens of all units, besides those of the round; for R <= N.

  Attributes: those of token_barrier.Tokens, and
    progress: unit_progress.UnitProgress, how far each unit is.
  """

  def __init__(self, cluster, num_contributions, entry, device, unit_devices):
    """
    Args:
      cluster, num_contributions, entry, device: see token_barrier.Tokens.
      unit_devices: list of str, the device of each unit.
    """
    super().__init__(cluster, num_contributions, entry, device)
    self._worker = cluster.task_index
    self._workers = range(cluster.num_workers)
    self._late_wait = None
    self._units = unit_queues.UnitQueues(
      cluster.num_workers,
      unit_devices,
      keeps_one=num_contributions < cluster.num_workers,
    )
    self.progress = unit_progress.UnitProgress(self._units)

  def begin_wait(self, staleness):
    """Call before `wait` and `take`; `staleness` is from Entry.contribute."""
    self._late_wait = None
    if staleness is not None:
      self._late_wait = late_wait.LateWait(self.own, self._device, staleness)

  def wait(self, unit, ops):
    """Returns the op that takes this worker's token of a unit, after `ops`."""
    with tf.control_dependencies(ops):
      return self._units.take(unit, self._worker, self._late_wait)

  def take(self):
    return self._late_wait.take() if self._late_wait else super().take()

  def build_is_whole(self):
    """Returns whether no update is under way, a bool scalar tensor."""
    with tf.device(self._device):
      step = round_entry.step_of(self._entry.read_token())
    are_whole = self.progress.build_are_even(step)
    if not self._entry.is_lock_step:
      are_whole.append(tf.logical_not(self._entry.is_complete()))
    with tf.device(self._device):
      return tf.reduce_all(tf.stack(are_whole))

  def hand_out(self, unit, token, ops):
    """Returns the op that hands out the tokens of a unit once `ops` have run.

    Args:
      unit: int.
      token: int64 scalar tensor, the one with which the round will end.
      ops: list of ops that update the unit.
    """
    place = self._units.find_place(unit)
    numbers = self.progress.bring(token, place)

    def note_and_put():
      noted = self.progress.end(unit, numbers)
      with tf.control_dependencies([noted]):
        return self._units.put_one(unit)

    return self._units.run_locked(place, note_and_put, [numbers, *ops])

  def align(self, token):
    return [self._align(place, token) for place in self._units.places]

  def _align(self, place, token):
    with tf.device(place):
      now = tf.identity(self._entry.read_token())
      token = tf.identity(token)

    def empty_and_put():
      # The queue of the round already has a token of the next life.
      is_old = now // round_entry.LIFE > token // round_entry.LIFE
      emptied = self._units.empty(place, self._worker)
      with tf.control_dependencies([emptied]):
        handed = self.progress.find_handed(place)
        is_due = tf.logical_or(handed > token, is_old)
        return self._units.put_where(place, [self._worker], is_due)

    return self._units.run_locked(place, empty_and_put, [now, token])

  def make_for_others(self, token):
    others = [i for i in self._workers if i != self._worker]
    # Units first, as a late worker empties their queues once it has its token.
    with tf.control_dependencies([self._even(others, token)]):
      return super().make_for_others(token)

  def release(self):
    now = self._entry.read_token()
    with tf.control_dependencies([self._even(self._workers, now)]):
      return super().release()

  def _even(self, workers, token):
    """Returns the op after which no unit is ahead of the tokens of `workers`.

    Args:
      workers: iterable of int, which get a token of the round at the same time.
      token: int64 scalar tensor, that token.
    """

    def build(place):
      with tf.device(place):
        before, after = tf.identity(now), tf.identity(token)

      def put_and_note():
        is_due = self.progress.find_handed(place) <= before
        put = self._units.put_where(place, workers, is_due)
        with tf.control_dependencies([put]):
          return self.progress.note_handed(place, after)

      return self._units.run_locked(place, put_and_note, [before, after])

    now = self._entry.read_token()
    return tf.group(*map(build, self._units.places))

  def reset(self, token):
    done = []
    for place in self._units.places:
      with tf.device(place):
        done.append(self.progress.reset(place, tf.identity(token)))
    return done

  def offer_own(self):
    offered = self._units.offer(self._worker, token_barrier.NUM_OFFERED)
    return tf.group(super().offer_own(), offered)

  def close(self):
    return tf.group(super().close(), self._units.close())
