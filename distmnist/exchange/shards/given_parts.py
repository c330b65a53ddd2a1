"""What each worker has contributed to each unit: nothing counts twice.

The ps of a unit notes for each worker the token with which it contributed last.
The successor of one that was lost amid its push, which begins with the same
token, contributes only what is missing.
"""

import tensorflow.compat.v1 as tf

from distmnist.exchange.rounds import round_entry


class GivenParts:
  """The notes of all workers, in the tables of the units."""

  def __init__(self, units, worker, num_workers):
    """
    Args:
      units: unit_queues.UnitQueues.
      worker: int, which one contributes here.
      num_workers: int.
    """
    self._units = units
    self._worker = worker
    self._num_workers = num_workers

  def give_once(self, unit, token, build, ops):
    """Returns the op by which this worker contributes to a unit.

    Args:
      unit: int.
      token: int64 scalar tensor, with which it contributes.
      build: callable(token) -> list of ops, which contribute with a token that
        is NEVER_IN where a predecessor has done so.
      ops: list of tensors, the parts, which must have arrived.
    """
    place, key = self._units.find_place(unit), self._key(unit, self._worker)
    with tf.device(place), tf.control_dependencies(ops):
      token = tf.identity(token)
      before = self._units.find(place, [key])[0]
      never = tf.constant(round_entry.NEVER_IN, tf.int64)
      once = tf.where(tf.equal(before, token), never, token)
      with tf.control_dependencies(build(once)):
        return self._units.note(place, [key], [token])

  def forget(self, place):
    """Returns the op that forgets what was contributed at a ps.

    Where the lives of the rounds begin anew, old tokens come again.
    """
    keys = [
      self._key(unit, worker)
      for unit in self._units.places[place]
      for worker in range(self._num_workers)
    ]
    never = tf.constant(round_entry.NEVER_IN, tf.int64)
    return self._units.note(place, keys, tf.fill([len(keys)], never))

  def _key(self, unit, worker):
    # Below those of shard_tokens.py.
    return -1 - unit * self._num_workers - worker
