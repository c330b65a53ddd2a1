"""A worker's copy of the center, pulled part by part in any order.

The step that pushes a part of a gradient also pulls that part of the center as
soon as it is updated, so a link is used both ways at once and the next step
begins with what it needs. Variables IN_PLACE (center.py) stay put.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import tensorflow.compat.v1 as tf

from distmnist import tf_internals
from distmnist.exchange.copies import local_copies
from distmnist.transport import strategy, variable_lists

if TYPE_CHECKING:
  from distmnist.cluster.cluster import Cluster


# Smaller parts make for shorter ramps at both ends of a step, and for more
# messages.
PART_BYTES = 1 << 20


class ShardCopies(local_copies.LocalCopies):
  """The copies, and which parts of the center travel together."""

  _keeps_in_place = True

  def __init__(
    self, cluster: Cluster, part_bytes: int | None = PART_BYTES
  ) -> None:
    """
    Args:
      part_bytes: up to which small shards travel together; None for all.
    """
    super().__init__(cluster, part_bytes)
    self._begins = {}

  @property
  def variables(self) -> list[tf.Variable]:
    return [view for view, _ in self._pulled]

  def hold(self, unit: Iterable[int], op: tf.Operation) -> None:
    """Lets a message begin only once `op` has run; call after `to_shards`.

    Args:
      unit: the shards whose parts travel in it.
    """
    for begin in {self._begins[i] for i in unit if i in self._begins}:
      tf_internals.add_control_inputs(begin, [op])

  def pull_after(self, ops: Sequence[tf.Operation]) -> tf.Operation:
    """Returns the op by which the copies take the center.

    Args:
      ops: like `shards`: a shard is read once its op has run.
    """
    parts = [
      strategy.read_after(shard, [op])
      for shard, op in zip(self._pulled_shards, ops, strict=False)
    ]
    whole = self.from_shards(parts)
    # All copies must be there before gradients are computed with them.
    return variable_lists.assign_all(self.variables, whole)

  def bring(
    self, tensors: Sequence[tf.Tensor], ops: Sequence[tf.Operation]
  ) -> list[tf.Tensor]:
    """Returns scalar `tensors` on the worker, once `ops` have run."""
    with tf.device(self._cpu_device), tf.control_dependencies(ops):
      return [tf.identity(tensor) for tensor in tensors]
