"""What each worker has contributed to each unit, so that nothing counts twice.

The ps of a unit notes the token of each worker's last contribution. If a worker
is lost in mid-push, its successor begins with the same token and contributes
only what is missing.
"""

import tensorflow.compat.v1 as tf

from distmnist.exchange.rounds import round_entry


class GivenParts:
  """The notes of all workers, in the tables of the units."""

  def __init__(self, units, worker, num_workers):
    """
    Args:
      units: unit_queues.UnitQueues.
      worker: int, the one that contributes here.
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
      build: callable(token) -> list of ops that contribute with that token,
        which is NEVER_IN if a predecessor has already contributed.
      ops: list of tensors, the parts, which must arrive first.
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

    When the lives of the rounds start over, old tokens recur.
    """
    keys = [
      self._key(unit, worker)
      for unit in self._units.places[place]
      for worker in range(self._num_workers)
    ]
    never = tf.constant(round_entry.NEVER_IN, tf.int64)
    return self._units.note(place, keys, tf.fill([len(keys)], never))

  def _key(self, unit, worker):
    # Below the keys of unit_progress.py.
    return -1 - unit * self._num_workers - worker
