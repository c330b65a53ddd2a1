"""A round whose shards are updated, and waited for, one by one.

A unit is what travels as one message: a large shard, or several small ones of
one ps. As soon as R gradients of a unit are in, it is updated, and each worker
may pull it. The token of the round (tokens.py) comes when all units are
updated. The ps of a unit notes how far the unit is, by three numbers:

  begun    the global_step that the unit is about to reach.
  applied  the global_step that the unit has reached. A round that another
           chief restarts leaves out the units that are ahead: none is
           updated twice in a round.
  handed   the token with which the last round of the unit ends.

A worker that has contributed waits until the `handed` of a unit is past its own
token. What is noted decides; its queue of the unit only wakes it up to look
again, so a queue never needs more than one entry, and one that is left over
does no harm. So no queue has to be put right when a worker begins or is lost,
and a chief that takes over notes its first token for all units: whoever waits
with an old one goes on. A chief that leaves lets all go that still wait in this
life of the rounds.

With R < N the others go on without a worker that is late. It first waits for
the token of the round, and takes all there are; the units are then at the
newest. If a token of the next round was among those it took, that round is
full, and the worker will be late again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import tensorflow.compat.v1 as tf

from distmnist.exchange.rounds import round_entry, tokens
from distmnist.transport import ps_state

if TYPE_CHECKING:
  from distmnist.cluster.cluster import Cluster


_NEVER = -1
# In one wait: by what is left over from an earlier round, by a new center, and
# by the update that it waits for. (Without a bound it would be a tf.while_loop,
# in which each look is a function call.)
_MOST_WAKES = 3


class UnitTokens(tokens.Tokens):
  """The tokens of a round, and the waits for its units; for R <= N.

  Attributes: those of tokens.Tokens, and
    units: Units.
  """

  def __init__(
    self,
    cluster: Cluster,
    num_contributions: int,
    entry: round_entry.Entry,
    device: str,
    unit_devices: Sequence[str],
  ) -> None:
    """
    Args:
      cluster, num_contributions, entry, device: see tokens.Tokens.
      unit_devices: the device of each unit.
    """
    super().__init__(cluster, num_contributions, entry, device)
    self._worker = cluster.task_index
    self._workers = range(cluster.num_workers)
    self._late_wait = self._goal = None
    self.units = Units(cluster.num_workers, unit_devices)

  def set_goal(self, own_token: tf.Tensor, staleness: tf.Tensor | None) -> None:
    """Says what this step waits for; call before `wait` and `take`.

    Args:
      own_token: int64 scalar tensor, the one with which this worker gives.
      staleness: what Entry.contribute has returned.
    """
    with tf.device(self._device):
      self._goal, self._late_wait = own_token + 1, None
      if staleness is not None:
        self._late_wait = _LateWait(self.own, staleness)
        self._goal = self._late_wait.find_goal(self._goal)

  def wait(self, unit: int, ops: Sequence[tf.Operation]) -> tf.Operation:
    """Returns the op that waits, after `ops`, until a unit may be pulled."""
    return self.units.wait(unit, self._worker, self._goal, ops)

  def take(self) -> tf.Tensor:
    return self._late_wait.take() if self._late_wait else super().take()

  def hand_out(
    self, unit: int, token: tf.Tensor, ops: Sequence[tf.Operation]
  ) -> tf.Operation:
    """Returns the op that lets all pull a unit once `ops` have run.

    Args:
      token: int64 scalar tensor, the one with which the round will end.
      ops: those that update the unit.
    """
    with tf.control_dependencies([self.units.end(unit, token, ops)]):
      return self.units.wake([unit], self._workers)

  def rejoin(self) -> list[tf.Operation]:
    return [self.units.hold([self._worker])]

  def make_for_others(self, token: tf.Tensor) -> tf.Operation:
    # Units first: whoever has the token finds them at least where it is.
    with tf.control_dependencies([self.units.hand_out_all(token)]):
      return super().make_for_others(token)

  def release(self) -> tf.Operation:
    with tf.control_dependencies([self._release_units(self._workers)]):
      return super().release()

  def reset(self, token: tf.Tensor) -> list[tf.Operation]:
    return [self.units.reset(token, self._workers)]

  def offer_own(self) -> tf.Operation:
    return tf.group(super().offer_own(), self._release_units([self._worker]))

  def _release_units(self, workers: Sequence[int]) -> tf.Operation:
    """Returns the op after which `workers` wait for no unit in this life."""
    with tf.device(self._device):
      life = self._entry.read_token() // round_entry.LIFE
      return self.units.let_go(workers, (life + 1) * round_entry.LIFE)

  def close(self) -> tf.Operation:
    return tf.group(super().close(), self.units.close())


class Units:
  """The progress of each unit, and the queues that wake those who wait for it.

  All is beside the shards of a unit: a queue for each worker, and a table of a
  ps, which needs no initialisation and is in no checkpoint.

  Attributes:
    places: by device, the units there.
  """

  def __init__(self, num_workers: int, devices: Sequence[str]) -> None:
    """
    Args:
      devices: the device of each unit.
    """
    self._devices = devices
    self.places, self._tables = {}, {}
    for unit, place in enumerate(devices):
      self.places.setdefault(place, []).append(unit)
    for place in self.places:
      with tf.device(place):
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

  def wait(
    self,
    unit: int,
    worker: int,
    goal: tf.Tensor,
    ops: Sequence[tf.Operation] = (),
  ) -> tf.Operation:
    """Returns the op that waits until `handed` of a unit has come to `goal`.

    Args:
      goal: int64 scalar tensor, a token.
      ops: those after which it begins to look.
    """
    place, queue = self._devices[unit], self._queues[unit][worker]

    def look() -> tf.Tensor:
      # Keys of its own, made here: or TensorFlow might look but once.
      noted = self._find(place, [_handed(unit), _let_go(worker)])
      return tf.reduce_max(noted) < goal

    woken = ops
    with tf.device(place):
      for _ in range(_MOST_WAKES):
        with tf.control_dependencies(woken):
          is_early = look()
        woken = [queue.dequeue_many(tf.cast(is_early, tf.int32))]
      with tf.control_dependencies(woken):
        is_past = tf.logical_not(look())
      # tf.debugging.Assert is a function call, which takes longer.
      message = f'unit {unit} woke worker {worker} too often'
      return tf.raw_ops.Assert(condition=is_past, data=[tf.constant(message)])

  def wake(self, units: Sequence[int], workers: Sequence[int]) -> tf.Operation:
    """Returns the op that wakes `workers` which wait for `units` of one ps.

    Queues that are closed are left alone.
    """
    queues = [self._queues[unit][i] for unit in units for i in workers]
    with tf.device(self._devices[units[0]]):
      is_open = tf.logical_not(queues[0].is_closed())
      return tokens.put_if_empty(queues, True, is_open)

  def begin(self, unit: int, token: tf.Tensor) -> tf.Tensor:
    """Returns whether a unit has to be updated in a round.

    Also notes that this has begun.

    Args:
      token: int64 scalar tensor, the one with which the round will end.
    """
    place = self._devices[unit]
    with tf.device(place):
      step = self._bring(token, place)[0]
      begun = self._tables[place].insert([_begun(unit)], [step])
      with tf.control_dependencies([begun]):
        applied = self._find(place, [_applied(unit)])
      return applied[0] < step

  def end(
    self, unit: int, token: tf.Tensor, ops: Sequence[tf.Operation]
  ) -> tf.Operation:
    """Returns the op that notes that a unit is updated, once `ops` have run.

    Args:
      unit, token: see `begin`.
    """
    place = self._devices[unit]
    numbers = self._bring(token, place)
    with tf.device(place), tf.control_dependencies(ops):
      keys = [_applied(unit), _handed(unit)]
      return self._tables[place].insert(keys, numbers)

  def build_are_even(self, step: tf.Tensor) -> list[tf.Tensor]:
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

  def hand_out_all(self, token: tf.Tensor) -> tf.Operation:
    """Returns the op after which whoever has an older token waits no more."""

    def build(place: str, units: Sequence[int]) -> tf.Operation:
      token_there = tf.identity(token)
      noted = self._note(place, _handed, token_there)
      with tf.control_dependencies([noted]):
        return self.wake(units, range(len(self._queues[0])))

    return self._on_each(build)

  def let_go(self, workers: Sequence[int], token: tf.Tensor) -> tf.Operation:
    """Returns the op after which `workers` wait for no unit, until `hold`.

    Args:
      token: int64 scalar tensor; with a `goal` past it they wait.
    """

    def build(place: str, units: list[int]) -> tf.Operation:
      keys = [_let_go(i) for i in workers]
      noted = self._tables[place].insert(keys, tf.fill([len(keys)], token))
      with tf.control_dependencies([noted]):
        return self.wake(units, workers)

    return self._on_each(build)

  def hold(self, workers: Sequence[int]) -> tf.Operation:
    """Returns the op after which `workers` wait for units again."""
    keys = [_let_go(i) for i in workers]
    return self._on_each(
      lambda place, units: self._tables[place].insert(
        keys, [_NEVER] * len(keys)
      )
    )

  def reset(self, token: tf.Tensor, workers: Sequence[int]) -> tf.Operation:
    """Returns the op that sets all units to where a center begins.

    Args:
      token: int64 scalar tensor, the first one of that center.
      workers: none of which is let go any more.
    """

    def build(place: str, units: Sequence[int]) -> tf.Operation:
      del units
      first = tf.identity(token)
      step = round_entry.step_of(first)
      return tf.group(
        self._note(place, _begun, step), self._note(place, _applied, step)
      )

    ready = [self._on_each(build), self.hand_out_all(token)]
    with tf.control_dependencies(ready):
      return self.hold(workers)

  def close(self) -> tf.Operation:
    """Returns the op that closes all queues, if they are open."""

    def build(place: str, units: list[int]) -> tf.Operation:
      del place
      return tokens.close(
        [queue for unit in units for queue in self._queues[unit]]
      )

    return self._on_each(build)

  def _on_each(
    self, build: Callable[[str, list[int]], tf.Operation]
  ) -> tf.Operation:
    """Returns the op of build(device, units there) on each ps."""
    done = []
    for place, units in self.places.items():
      with tf.device(place):
        done.append(build(place, units))
    return tf.group(*done)

  def _bring(self, token: tf.Tensor, place: str) -> tf.Tensor:
    """Returns int64 [2] at `place`: a token's global_step, and the token."""
    key = token.ref(), place
    if key not in self._brought:
      with tf.device(place), tf.control_dependencies(None):
        token = tf.identity(token)
        numbers = tf.stack([round_entry.step_of(token), token])
      self._brought[key] = numbers
    return self._brought[key]

  def _find(self, place: str, keys: Sequence[int]) -> tf.Tensor:
    return self._tables[place].find(keys, _NEVER)

  def _note(
    self, place: str, key: Callable[[int], int], number: tf.Tensor
  ) -> tf.Operation:
    """Returns the op that notes `number`, int64 scalar, for all units there."""
    keys = self._keys(place, key)
    return self._tables[place].insert(keys, tf.fill([len(keys)], number))

  def _keys(self, place: str, key: Callable[[int], int]) -> list[int]:
    return list(map(key, self.places[place]))


class _LateWait:
  """The wait for the round in a step of a worker that may be late."""

  def __init__(self, own: tf.FIFOQueue, staleness: tf.Tensor) -> None:
    """
    Args:
      own: tf.FIFOQueue on the current device, the tokens of the round for this
        worker.
      staleness: int64 scalar tensor there, 0 if the worker is not late.
    """
    self._own = own
    self._is_late = staleness > 0
    first = own.dequeue_many(tf.cast(self._is_late, tf.int32))
    with tf.control_dependencies([first]):
      rest = own.dequeue_many(tf.where(self._is_late, own.size(), 0))
    self._taken = tf.concat([first, rest], 0)

  def find_goal(self, goal: tf.Tensor) -> tf.Tensor:
    """Returns what this worker waits for at the units.

    Args:
      goal: int64 scalar tensor, what it waits for if it is not late.
    """
    # The units are past every token that is given out.
    return tf.concat([[goal], self._taken], 0)[-1]

  def take(self) -> tf.Tensor:
    """Returns the newest token of the round, int64 scalar tensor."""
    own = self._own.dequeue_many(tf.where(self._is_late, 0, 1))
    return tf.concat([self._taken, own], 0)[-1]


# The keys of a table: three for each unit, and below 0 those of workers.
def _begun(unit: int) -> int:
  return 3 * unit


def _applied(unit: int) -> int:
  return 3 * unit + 1


def _handed(unit: int) -> int:
  return 3 * unit + 2


def _let_go(worker: int) -> int:
  return -1 - worker
