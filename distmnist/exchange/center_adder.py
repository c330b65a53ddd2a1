"""Adds the workers' changes to the center: each as it comes, or all together.

Asynchronous: x~ <- x~ + d^i, one worker after another, and none waits.
Synchronous: x~ <- x~ + sum_i d^i once every worker has pushed its own d^i, and
all wait for this.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import tensorflow.compat.v1 as tf

from distmnist.exchange.copies import periodic_exchange
from distmnist.exchange.rounds import sync_round
from distmnist.transport import nonfinite, strategy, variable_lists

if TYPE_CHECKING:
  from distmnist.cluster.cluster import Cluster
  from distmnist.cluster.stop_request import StopRequest
  from distmnist.exchange.copies.local_copies import LocalCopies
  from distmnist.transport.strategy import MarkDone

# Reads the center; returns what is to be added to it, like the copies, and the
# op that moves the copies themselves.
MakeChanges = Callable[[], tuple[list[tf.Tensor], tf.Operation]]


class AsyncAdder:
  """Adds a worker's changes when they arrive; nothing is locked."""

  def __init__(
    self, copies: LocalCopies, global_step: tf.Variable, mark_done: MarkDone
  ) -> None:
    """
    Args:
      global_step: int64 scalar variable, which counts the additions.
      mark_done: callable(ops) -> ops, Strategy.mark_done.
    """
    self._copies = copies
    self._global_step = global_step
    self._mark_done = mark_done

  def build_update(
    self, period: int, step: tf.Tensor, make_changes: MakeChanges
  ) -> strategy.Update:
    """Adds this worker's changes in each step that `period` divides.

    Args:
      period: T.
      step: int64 scalar tensor, which the addition waits for.
      make_changes: see MakeChanges.
    """
    known_step = self._copies.make_counter(
      self._global_step.read_value(), 'known_step'
    )
    return periodic_exchange.build_update(
      self._copies,
      period,
      step,
      lambda: self._exchange(make_changes),
      known_step,
    )

  def _exchange(self, make_changes: MakeChanges) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns (new_step, staleness) once the changes are added."""
    read_step = strategy.read_after(self._global_step, [])
    changes, own = make_changes()
    pairs = self._copies.to_shards(changes)
    added = variable_lists.add_all(
      *zip(*((shard, change) for change, shard in pairs), strict=True)
    )
    return strategy.count_update(
      self._global_step, [own, added], read_step, self._mark_done
    )

  def hooks(self, stop: StopRequest) -> list[tf.train.SessionRunHook]:
    """Returns the SessionRunHooks; `stop` is a StopRequest."""
    del stop
    return []


class SyncAdder(AsyncAdder):
  """Adds all workers' changes at once; each waits until this is done."""

  def __init__(
    self,
    cluster: Cluster,
    copies: LocalCopies,
    global_step: tf.Variable,
    mark_done: MarkDone,
  ) -> None:
    super().__init__(copies, global_step, mark_done)
    self._num_workers = cluster.num_workers
    self._task_index = cluster.task_index
    self._round = sync_round.make_round(
      cluster, cluster.num_workers, global_step, copies
    )
    self._round.build_update(self._add_sums)

  def _add_sums(self, means: Sequence[tf.Tensor]) -> tf.Operation:
    """Returns the op x~ += sum d^i; means is a list like the shards."""
    updates = []
    for mean, shard in zip(means, self._copies.shards, strict=True):
      with tf.device(shard.device):
        change = nonfinite.check_mean(
          self._num_workers * mean, self._task_index
        )
        updates.append(shard.assign_add(change, read_value=False))
    return tf.group(*updates)

  def _exchange(self, make_changes: MakeChanges) -> tuple[tf.Tensor, tf.Tensor]:
    changes, own = make_changes()
    pairs = []
    for change, shard in self._copies.to_shards(changes):
      # On the shard's ps, where the change has arrived.
      with tf.control_dependencies([own]), tf.device(shard.device):
        pairs.append((tf.identity(change), shard))
    return self._round.push_and_wait(pairs, mark_done=self._mark_done)

  def hooks(self, stop: StopRequest) -> list[tf.train.SessionRunHook]:
    return [self._round.hook(stop, self._copies.pull())]


def make(
  is_sync: bool,
  cluster: Cluster,
  copies: LocalCopies,
  global_step: tf.Variable,
  mark_done: MarkDone,
) -> AsyncAdder:
  """Returns the SyncAdder or AsyncAdder of a worker.

  Args:
    copies, global_step, mark_done: see AsyncAdder.
  """
  if is_sync:
    return SyncAdder(cluster, copies, global_step, mark_done)
  return AsyncAdder(copies, global_step, mark_done)
