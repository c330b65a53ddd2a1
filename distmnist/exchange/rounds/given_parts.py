"""What each worker has contributed to each part, so that nothing counts twice.

A part is an accumulator, or several whose tensors travel as one message. Its ps
notes the token of each worker's last contribution. If a worker is lost in
mid-push, its successor begins with the same token and contributes only what is
missing.
"""

import tensorflow.compat.v1 as tf

from distmnist.exchange.rounds import round_entry
from distmnist.transport import ps_state


class GivenParts:
  """The notes of all workers, in a table on each ps.

  A table needs no initialisation and is in no checkpoint.

  Attributes:
    places: dict of device -> list of int, the parts there.
  """

  def __init__(self, cluster, devices):
    """
    Args:
      cluster: cluster.Cluster.
      devices: list of str, the device of each part.
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

  def read(self, part, ops):
    """Returns with which token this worker contributed last, int64 scalar.

    Args:
      part: int.
      ops: list of tensors of the next contribution, which must arrive first.
    """
    place = self._devices[part]
    with tf.device(place), tf.control_dependencies(ops):
      return self._tables[place].find(self._keys[part], self._never[place])

  def find(self, place, worker):
    """Returns with which token `worker` contributed last to each part at a ps.

    Args:
      place: str, the device of the ps.
      worker: int.

    Returns:
      int64 tensor like `places[place]`.
    """
    keys = [self._make_key(part, worker) for part in self.places[place]]
    with tf.device(place):
      return self._tables[place].find(keys, self._never[place])

  def give_once(self, part, last, token, build):
    """Returns the op by which this worker contributes to a part.

    Args:
      part: int.
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

  def forget(self, place):
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

  def _make_key(self, part, worker):
    return part * self._num_workers + worker
