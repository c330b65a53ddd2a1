"""Tokens of a round whose shards are updated one by one.

A unit is what travels as one message: a large shard, or several small ones of
one ps. As soon as R gradients of a unit are in, it is updated, and each worker
gets a token of that unit, for which it waits before pulling the unit. The token
of the round (tokens.py) comes when all units are updated.

The invariant: a worker's queue of a unit gets one token for each token of the
round that the worker gets, whoever hands it out; the unit's comes first. As a
task may die between the two, the ps of a unit notes how far the unit is, by
three numbers:

  begun    the global_step that the unit is about to reach.
  applied  the global_step that the unit has reached. A round that another
           chief restarts leaves out the units that are ahead: none is
           updated twice in a round.
  handed   the token of the round that the last token of the unit goes with.
           It is ahead of the current token if the unit is done and the round
           is not.

A worker whose gradients are in takes one token of each unit and one of the
round. With R < N the others go on without a worker that is late. It first waits
for the token of the round, takes all there are, and empties its unit queues:
what comes after that goes with the next round. If a token of that next round
was among those it took, that round is full, and the worker will be late again.
So a unit's queue that still has a token gets no other one: it would be of a
round that is full, and so without the worker that has not taken the last one.
One that is gone for good would otherwise leave a token for each unit and round.

A worker that begins empties its queues and has the tokens due to it put in,
under the lock under which tokens are handed out.
"""

import tensorflow.compat.v1 as tf

from distmnist.exchange.rounds import round_entry, tokens
from distmnist.transport import ps_state

_NEVER = -1


class UnitTokens(tokens.Tokens):
  """The tokens of all units, besides those of the round; for R <= N.

  Attributes: those of tokens.Tokens, and
    units: Units.
  """

  def __init__(self, cluster, num_contributions, entry, device, unit_devices):
    """
    Args:
      cluster, num_contributions, entry, device: see tokens.Tokens.
      unit_devices: list of str, the device of each unit.
    """
    super().__init__(cluster, num_contributions, entry, device)
    self._worker = cluster.task_index
    self._workers = range(cluster.num_workers)
    self._late_wait = None
    self.units = Units(
      cluster.num_workers,
      unit_devices,
      keeps_one=num_contributions < cluster.num_workers,
    )

  def begin_wait(self, staleness):
    """Call before `wait` and `take`; `staleness` is from Entry.contribute."""
    self._late_wait = None
    if staleness is not None:
      self._late_wait = _LateWait(self.own, self._device, staleness)

  def wait(self, unit, ops):
    """Returns the op that takes this worker's token of a unit, after `ops`."""
    with tf.control_dependencies(ops):
      return self.units.take(unit, self._worker, self._late_wait)

  def take(self):
    return self._late_wait.take() if self._late_wait else super().take()

  def hand_out(self, unit, token, ops):
    """Returns the op that hands out the tokens of a unit once `ops` have run.

    Args:
      unit: int.
      token: int64 scalar tensor, the one with which the round will end.
      ops: list of ops that update the unit.
    """
    place = self.units.find_place(unit)
    numbers = self.units.bring(token, place)

    def note_and_put():
      noted = self.units.end(unit, numbers)
      with tf.control_dependencies([noted]):
        return self.units.put_one(unit)

    return self.units.run_locked(place, note_and_put, [numbers, *ops])

  def align(self, token):
    return [self._align(place, token) for place in self.units.places]

  def _align(self, place, token):
    with tf.device(place):
      now = tf.identity(self._entry.read_token())
      token = tf.identity(token)

    def empty_and_put():
      # The queue of the round already has a token of the next life.
      is_old = now // round_entry.LIFE > token // round_entry.LIFE
      emptied = self.units.empty(place, self._worker)
      with tf.control_dependencies([emptied]):
        handed = self.units.find_handed(place)
        is_due = tf.logical_or(handed > token, is_old)
        return self.units.put_where(place, [self._worker], is_due)

    return self.units.run_locked(place, empty_and_put, [now, token])

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
        is_due = self.units.find_handed(place) <= before
        put = self.units.put_where(place, workers, is_due)
        with tf.control_dependencies([put]):
          return self.units.note_handed(place, after)

      return self.units.run_locked(place, put_and_note, [before, after])

    now = self._entry.read_token()
    return tf.group(*map(build, self.units.places))

  def reset(self, token):
    done = []
    for place in self.units.places:
      with tf.device(place):
        done.append(self.units.reset(place, tf.identity(token)))
    return done

  def offer_own(self):
    offered = self.units.offer(self._worker, tokens.NUM_OFFERED)
    return tf.group(super().offer_own(), offered)

  def close(self):
    return tf.group(super().close(), self.units.close())


class Units:
  """The queues of all units, and how far each is, ps by ps.

  Each unit has a queue for each worker, beside its shards, and a ps has a table
  of numbers for its units, see above. The table needs no initialisation and is
  in no checkpoint.

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
    self._brought = {}
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

  def take(self, unit, worker, wait=None):
    """Returns the op that waits for a token of a unit, and takes it.

    Args:
      unit, worker: int.
      wait: _LateWait of a worker that may be late, or None.
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

  def bring(self, token, place):
    """Returns int64 [2] at `place`: a token's global_step, and the token."""
    key = token.ref(), place
    if key not in self._brought:
      with tf.device(place), tf.control_dependencies(None):
        token = tf.identity(token)
        numbers = tf.stack([round_entry.step_of(token), token])
      self._brought[key] = numbers
    return self._brought[key]

  def begin(self, unit, token):
    """Returns whether a unit has to be updated in a round, bool.

    Also notes that this has begun.

    Args:
      unit: int.
      token: int64 scalar tensor, the one with which the round will end.
    """
    place = self.find_place(unit)
    with tf.device(place):
      step = self.bring(token, place)[0]
      begun = self._tables[place].insert([_begun(unit)], [step])
      with tf.control_dependencies([begun]):
        applied = self._find(place, [_applied(unit)])
      return applied[0] < step

  def end(self, unit, numbers):
    """Returns the op that notes that a unit is updated and handed out.

    Args:
      unit: int.
      numbers: int64 tensor [2], as returned by `bring`.
    """
    place = self.find_place(unit)
    return self._tables[place].insert([_applied(unit), _handed(unit)], numbers)

  def build_are_even(self, step):
    """Returns bool scalar tensors, one per ps: True if no unit is ahead there.

    Args:
      step: int64 scalar tensor, the global_step.
    """
    are_even = []
    for place in self.places:
      with tf.device(place):
        begun = self._find(place, self._keys(place, _begun))
        are_even.append(tf.reduce_all(begun <= step))
    return are_even

  def find_handed(self, place):
    """Returns `handed` of the units of a ps, int64 tensor."""
    return self._find(place, self._keys(place, _handed))

  def note_handed(self, place, token):
    """Returns the op that notes a token as `handed` for all units of a ps."""
    keys = self._keys(place, _handed)
    return self._tables[place].insert(keys, tf.fill([len(keys)], token))

  def reset(self, place, token):
    """Returns the op that sets the units of a ps to where a center begins.

    Args:
      place: str, the device of the ps.
      token: int64 scalar tensor, the first one of that center.
    """
    step = round_entry.step_of(token)
    keys = self._keys(place, _begun) + self._keys(place, _applied)
    return tf.group(
      self._tables[place].insert(keys, tf.fill([len(keys)], step)),
      self.note_handed(place, token),
    )

  def _find(self, place, keys):
    return self._tables[place].find(keys, _NEVER)

  def _keys(self, place, key):
    return list(map(key, self.places[place]))


class _LateWait:
  """The waits in a step of a worker that may be late."""

  def __init__(self, own, device, staleness):
    """
    Args:
      own: tf.FIFOQueue, the tokens of the round for this worker.
      device: str, where that queue is.
      staleness: int64 scalar tensor there, 0 if the worker is not late.
    """
    self._own = own
    with tf.device(device):
      is_late = staleness > 0
      first = own.dequeue_many(tf.cast(is_late, tf.int32))
      with tf.control_dependencies([first]):
        rest = own.dequeue_many(tf.where(is_late, own.size(), 0))
      self._taken = tf.concat([first, rest], 0)
      with tf.control_dependencies([self._taken]):
        self._is_late = tf.identity(is_late)

  def take_of_unit(self, queue):
    """Returns the op that takes one token of a unit, or if late all there are.

    Args:
      queue: tf.FIFOQueue on the current device.
    """
    is_late = tf.identity(self._is_late)
    with tf.control_dependencies([is_late]):
      return queue.dequeue_many(tf.where(is_late, queue.size(), 1)).op

  def take(self):
    """Returns the newest token of the round, int64 scalar tensor."""
    own = self._own.dequeue_many(tf.where(self._is_late, 0, 1))
    return tf.concat([self._taken, own], 0)[-1]


def _begun(unit):
  return 3 * unit


def _applied(unit):
  return 3 * unit + 1


def _handed(unit):
  return 3 * unit + 2
