"""Tokens of a round whose shards are updated one by one.

A unit is what travels as one message: a large shard, or small ones of a ps
together. As soon as N gradients of a unit are in, it is applied, and each
worker gets a token of that unit, for which it has waited to pull it. The token
of the round (token_barrier.py) comes when all units are applied.

The invariant: a worker's queue of a unit gets one token for each token of the
round that the worker gets, whoever hands it out; the first before the second.
So that a task may die between the two, the ps of a unit notes three numbers:

  begun    the global_step that the unit is about to reach.
  applied  the global_step that the unit has reached. A round that another
           chief begins anew leaves out what is ahead: no unit is updated
           twice in a round.
  handed   the token of the round that the last token of the unit goes with.
           It is ahead of the token of now where the unit is done, and the
           round is not.

A worker that begins empties its queues and has what it is due put in, under the
lock under which tokens are handed out.
"""

import tensorflow.compat.v1 as tf

from distmnist.exchange.rounds import round_entry, token_barrier
from distmnist.exchange.shards import given_parts, late_wait, unit_queues


class ShardTokens(token_barrier.Tokens):
  """The tokens of all units, besides those of the round; for R <= N.

  Attributes: those of token_barrier.Tokens, and
    parts: given_parts.GivenParts, by which this worker contributes.
  """

  def __init__(self, cluster, num_contributions, entry, device, unit_devices):
    """
    Args:
      cluster, num_contributions, entry, device: see token_barrier.Tokens.
      unit_devices: list of str, the device of each unit.
    """
    super().__init__(cluster, num_contributions, entry, device, True)
    self._worker = cluster.task_index
    self._workers = range(cluster.num_workers)
    self._late_wait = None
    self._brought = {}
    self._units = unit_queues.UnitQueues(cluster.num_workers, unit_devices)
    self.parts = given_parts.GivenParts(
      self._units, self._worker, cluster.num_workers
    )

  def begin_wait(self, staleness):
    """To be called before `wait` and `take`.

    Args:
      staleness: int64 scalar tensor, 0 for a contribution that is not late;
        None where none ever is.
    """
    self._late_wait = None
    if staleness is not None:
      self._late_wait = late_wait.LateWait(self.own, self._device, staleness)

  def wait(self, unit, ops):
    """Returns the op that takes this worker's token of a unit, after `ops`."""
    with tf.control_dependencies(ops):
      return self._units.take(unit, self._worker, self._late_wait)

  def take(self):
    return self._late_wait.take() if self._late_wait else super().take()

  def begin(self, unit, token):
    """Returns whether a unit has to be applied in a round, bool.

    It is noted that this has begun.

    Args:
      unit: int.
      token: int64 scalar tensor, that with which the round will end.
    """
    place = self._units.find_place(unit)
    with tf.device(place):
      step = self._bring(token, place)[0]
      begun = self._units.note(place, [_begun(unit)], [step])
      with tf.control_dependencies([begun]):
        applied = self._units.find(place, [_applied(unit)])
      return applied[0] < step

  def build_is_whole(self):
    with tf.device(self._device):
      step = round_entry.step_of(self._entry.read_token())
    are_even = [tf.logical_not(self._entry.has_waiting())]
    for place in self._units.places:
      with tf.device(place):
        begun = self._units.find(place, self._keys(place, _begun))
        are_even.append(tf.reduce_all(begun <= step))
    with tf.device(self._device):
      return tf.reduce_all(tf.stack(are_even))

  def hand_out(self, unit, token, ops):
    """Returns the op that hands out the tokens of a unit once `ops` have run.

    Args:
      unit: int.
      token: int64 scalar tensor, that with which the round will end.
      ops: list of ops, which apply the unit.
    """
    place = self._units.find_place(unit)
    numbers = self._bring(token, place)

    def note_and_put():
      noted = self._units.note(place, [_applied(unit), _handed(unit)], numbers)
      with tf.control_dependencies([noted]):
        return self._units.put_one(unit)

    return self._units.run_locked(place, note_and_put, [numbers, *ops])

  def _bring(self, token, place):
    """Returns int64 [2] at `place`: the global_step of a token, and itself."""
    key = token.ref(), place
    if key not in self._brought:
      with tf.device(place), tf.control_dependencies(None):
        token = tf.identity(token)
        numbers = tf.stack([round_entry.step_of(token), token])
      self._brought[key] = numbers
    return self._brought[key]

  def align(self, token):
    return [self._align(place, token) for place in self._units.places]

  def _align(self, place, token):
    with tf.device(place):
      now = tf.identity(self._entry.read_token())
      token = tf.identity(token)

    def empty_and_put():
      # A token of the next life is in the queue of the round already.
      is_old = now // round_entry.LIFE > token // round_entry.LIFE
      emptied = self._units.empty(place, self._worker)
      with tf.control_dependencies([emptied]):
        handed = self._units.find(place, self._keys(place, _handed))
        is_due = tf.logical_or(handed > token, is_old)
        return self._units.put_where(place, [self._worker], is_due)

    return self._units.run_locked(place, empty_and_put, [now, token])

  def make_for_others(self, token):
    others = [i for i in self._workers if i != self._worker]
    # First, as one that is late empties its queues once it has its token.
    with tf.control_dependencies([self._even(others, token)]):
      return super().make_for_others(token)

  def release(self):
    now = self._entry.read_token()
    with tf.control_dependencies([self._even(self._workers, now)]):
      return super().release()

  def _even(self, workers, token):
    """Returns the op after which no unit is ahead of the tokens of `workers`.

    Args:
      workers: iterable of int, who get a token of the round at the same time.
      token: int64 scalar tensor, that token.
    """

    def build(place):
      keys = self._keys(place, _handed)
      with tf.device(place):
        before, after = tf.identity(now), tf.identity(token)

      def put_and_note():
        is_due = self._units.find(place, keys) <= before
        put = self._units.put_where(place, workers, is_due)
        with tf.control_dependencies([put]):
          return self._units.note(place, keys, tf.fill([len(keys)], after))

      return self._units.run_locked(place, put_and_note, [before, after])

    now = self._entry.read_token()
    return tf.group(*map(build, self._units.places))

  def reset(self, token):
    done = []
    for place in self._units.places:
      with tf.device(place):
        applied = self._keys(place, _begun) + self._keys(place, _applied)
        handed = self._keys(place, _handed)
        values = [
          tf.fill([len(applied)], round_entry.step_of(token)),
          tf.fill([len(handed)], token),
        ]
        keys = applied + handed
        done.append(self._units.note(place, keys, tf.concat(values, 0)))
        done.append(self.parts.forget(place))
    return done

  def offer_own(self):
    offered = self._units.offer(self._worker, token_barrier.NUM_OFFERED)
    return tf.group(super().offer_own(), offered)

  def close(self):
    return tf.group(super().close(), self._units.close())

  def _keys(self, place, key):
    return list(map(key, self._units.places[place]))


def _begun(unit):
  """Returns the key of a unit's `begun`, an int."""
  return 3 * unit + 2


def _applied(unit):
  """Returns the key of a unit's `applied`, an int."""
  return 3 * unit


def _handed(unit):
  """Returns the key of a unit's `handed`, an int."""
  return 3 * unit + 1
