"""How often keys were seen recently, in memory that does not grow with them.

A count-min sketch (Cormode and Muthukrishnan 2005): two hashes give each key
two counters, and the lower one is at least as large as the number of its
sightings. Once there were as many sightings as there are counters, all are
halved (TinyLFU, Einziger et al. 2017): old sightings fade, and keys that come
once do not fill up the sketch.
"""

from __future__ import annotations

import tensorflow.compat.v1 as tf

from distmnist.tables import key_hash, new_rows
from distmnist.transport import ps_state

# Per row of the table; each counter takes 4 bytes.
_COUNTERS_OF_ROW = new_rows.BYTES_OF_SIGHTINGS // 4
_SALTS = 1, 2


class CountMinSketch:
  """The counters beside a shard of a table; in no checkpoint."""

  def __init__(self, rows: tf.Variable) -> None:
    """
    Args:
      rows: [rows, width], where the counters are.
    """
    self._num = int(rows.shape[0]) * _COUNTERS_OF_ROW
    self._counters, self._total = (
      ps_state.Variable(tf.int32, shape, f'{rows.op.name}/{name}')
      for name, shape in (('sightings', [self._num]), ('all_sightings', []))
    )

  def reset(self) -> list[tf.Operation]:
    """Returns the ops after which no key counts as seen."""
    return [
      self._counters.assign(tf.zeros([self._num], tf.int32)),
      self._total.assign(0),
    ]

  def count(self, keys: tf.Tensor) -> tf.Tensor:
    """Counts a sighting of each of `keys`, one caller at a time.

    Args:
      keys: int64 [n].

    Returns:
      int32 [n]: how often each was seen, or a larger number.
    """
    places = tf.stack(
      [key_hash.find_places(keys, self._num, salt) for salt in _SALTS]
    )
    added = [
      self._counters.scatter_add(places, tf.ones([], tf.int32)),
      self._total.add(tf.size(keys)),
    ]
    with tf.control_dependencies(added):
      counted = self._counters.gather(places)
      total = self._total.read()
    with tf.control_dependencies([counted]):
      faded = tf.cond(total >= self._num, self._fade, lambda: total)
    with tf.control_dependencies([faded]):
      return tf.reduce_min(counted, 0)

  def _fade(self) -> tf.Tensor:
    halved = [x.assign(x.read() // 2) for x in (self._counters, self._total)]
    with tf.control_dependencies(halved):
      return self._total.read()
