"""The queues in which workers wait for the units of a round, ps by ps.

See shard_tokens.py. Each unit has a queue for each worker, beside its shards,
and a ps has a table of numbers for its units (unit_progress.py). The table
needs no initialisation and is in no checkpoint.
"""

import tensorflow.compat.v1 as tf

from distmnist.transport import ps_state

_NEVER = -1


class UnitQueues:
  """The queues and the tables.

  Attributes:
    places: dict of device -> list of int, the units there.
  """

  def __init__(self, num_workers, devices, keeps_one=False):
    """
    Args:
      num_workers: int.
      devices: list of str, the device of each unit.
      keeps_one: bool, whether `put_one` passes over queues with a token.
    """
    self._devices = devices
    self._keeps_one = keeps_one
    self.places, self._tables, self._locks = {}, {}, {}
    for unit, place in enumerate(devices):
      self.places.setdefault(place, []).append(unit)
    for place in self.places:
      with tf.device(place):
        # A lock of few ops, as each unit takes it in every round. For it to
        # fail as ps_lock.py says, a worker must die at the very moment when it
        # begins and waits for another.
        self._locks[place] = tf.raw_ops.MutexV2(shared_name='round/units_lock')
        self._tables[place] = ps_state.Table('round/units')
    self._queues = []
    for unit, place in enumerate(devices):
      with tf.device(place):
        self._queues.append(
          [
            tf.FIFOQueue(-1, tf.bool, (), shared_name=f'round/unit_{unit}_{i}')
            for i in range(num_workers)
          ]
        )

  def find_place(self, unit):
    """Returns the device of a unit, str."""
    return self._devices[unit]

  def run_locked(self, place, build, ops):
    """Returns the op that runs what `build` makes, under the lock of a ps.

    Args:
      place: str, the device.
      build: callable -> op.
      ops: list of ops or tensors, after which the lock is taken.
    """
    with tf.device(place):
      with tf.control_dependencies(ops):
        lock = tf.raw_ops.MutexLock(mutex=self._locks[place])
      with tf.control_dependencies([lock]):
        done = build()
      with tf.control_dependencies([done]):
        return tf.raw_ops.ConsumeMutexLock(mutex_lock=lock)

  def find(self, place, keys):
    """Returns what is noted, an int64 tensor like `keys`; -1 for nothing."""
    return self._tables[place].find(keys, _NEVER)

  def note(self, place, keys, values):
    """Returns the op that notes `values`, an int64 tensor like `keys`."""
    return self._tables[place].insert(keys, values)

  def take(self, unit, worker, wait=None):
    """Returns the op that waits for a token of a unit, and takes it.

    Args:
      unit, worker: int.
      wait: late_wait.LateWait of a worker that may be late, or None.
    """
    queue = self._queues[unit][worker]
    with tf.device(self._devices[unit]):
      return wait.take_of_unit(queue) if wait else queue.dequeue().op

  def put_one(self, unit):
    """Returns the op that gives each worker a token of a unit."""
    queues = self._queues[unit]
    with tf.device(self._devices[unit]):
      if not self._keeps_one:
        return tf.group(*(queue.enqueue(True) for queue in queues))
      sizes = tf.stack([queue.size() for queue in queues])
      numbers = tf.unstack(tf.cast(tf.equal(sizes, 0), tf.int32))
      return tf.group(
        *(
          queue.enqueue_many([tf.fill([number], True)])
          for queue, number in zip(queues, numbers, strict=True)
        )
      )

  def put_where(self, place, workers, is_due):
    """Returns the op that gives `workers` a token of each unit that is due.

    Args:
      place: str, the device.
      workers: iterable of int.
      is_due: bool tensor like the units of that place; nothing is put into
        closed queues.
    """
    units = self.places[place]
    is_open = tf.logical_not(self._queues[units[0]][0].is_closed())
    numbers = tf.unstack(tf.cast(tf.logical_and(is_due, is_open), tf.int32))
    given = [tf.fill([number], True) for number in numbers]
    return tf.group(
      *(
        self._queues[unit][i].enqueue_many([tokens])
        for unit, tokens in zip(units, given, strict=True)
        for i in workers
      )
    )

  def offer(self, worker, number):
    """Returns the op that puts `number` tokens into all queues of a worker."""
    offered = []
    for queues, place in zip(self._queues, self._devices, strict=True):
      with tf.device(place):
        offered.append(queues[worker].enqueue_many([tf.fill([number], True)]))
    return tf.group(*offered)

  def empty(self, place, worker):
    """Returns the op that empties the queues of a worker."""
    queues = [self._queues[unit][worker] for unit in self.places[place]]
    return tf.group(*(queue.dequeue_many(queue.size()) for queue in queues))

  def close(self):
    """Returns the op that closes all queues, if they are open."""
    closed = []
    for place, units in self.places.items():
      queues = [queue for unit in units for queue in self._queues[unit]]
      with tf.device(place):
        closed.append(
          tf.cond(
            queues[0].is_closed(),
            tf.no_op,
            lambda queues=queues: tf.group(*(q.close() for q in queues)),
          )
        )
    return tf.group(*closed)
