"""The values of one worker's variables, given to others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import tensorflow.compat.v1 as tf

from distmnist import tf_internals
from distmnist.exchange.ring import all_reduce

if TYPE_CHECKING:
  from distmnist.cluster.cluster import Cluster


class Handover:
  """The ops by which a worker gives its values, or takes another's.

  Attributes:
    gifts: the ops that give them to each worker; None for itself. They wait for
      nobody.
    take: the op that sets all variables once all values have come, or none.
  """

  def __init__(
    self, cluster: Cluster, variables: Sequence[tf.Variable], name: str
  ) -> None:
    """
    Args:
      cluster: cluster.Cluster of two workers or more.
      variables: alike on all workers; see all_reduce.fingerprint.
      name: see all_reduce.build_mean.
    """
    self._cluster = cluster
    self._like = variables
    own = cluster.task_index
    values = [v.read_value() for v in variables]
    self.gifts = [
      None if i == own else self._build_queue(i, name, cluster).enqueue(values)
      for i in range(cluster.num_workers)
    ]
    # From whom is told later.
    queue = self._build_queue(own, name, cluster)
    with tf.device(cluster.cpu_device):
      taken = queue.dequeue()
    taken = taken if len(variables) > 1 else [taken]
    self._moved = queue.queue_ref.op, taken[0].op
    with tf.device(cluster.cpu_device), tf.control_dependencies(taken):
      values = [tf.identity(value) for value in taken]
    self.take = tf.group(
      [v.assign(x) for v, x in zip(variables, values, strict=True)]
    )

  def take_from(self, giver: int) -> None:
    """Tells `take` whose values come; no session has it yet.

    Args:
      giver: the worker.
    """
    place = all_reduce.find_device(self._cluster, giver)
    for op in self._moved:
      tf_internals.set_device(op, place)

  def _build_queue(
    self, receiver: int, name: str, cluster: Cluster
  ) -> tf.FIFOQueue:
    # One value of each is enough.
    with tf.device(cluster.cpu_device):
      return all_reduce.build_queue(self._like, f'{name}/to_{receiver}', 1)
