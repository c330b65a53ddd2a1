"""A worker's own copies under Nesterov's momentum, which look ahead.

With g taken at x + delta v, delta being the momentum and v the velocity:

  v <- delta v - eta g(x + delta v);  x <- x + v

The copies hold x + delta v, where the model computes g; x itself is
computed from them. delta = 0 is a plain local step, with any optimizer. The v
of weights of 16 bits has 32, as the sum over steps that it is (sums.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import tensorflow.compat.v1 as tf

from distmnist.exchange.copies import local_copies
from distmnist.transport import sums, variable_lists

if TYPE_CHECKING:
  from distmnist.cluster.cluster import Cluster


class NesterovCopies(local_copies.LocalCopies):
  """LocalCopies at x + delta v, with the v of each beside it."""

  def __init__(self, cluster: Cluster, momentum: float) -> None:
    """
    Args:
      momentum: delta; above 0 the optimizer must be plain SGD.
    """
    super().__init__(cluster)
    self._momentum = momentum
    self._velocities = []

  def begin_step(
    self, optimizer: tf.train.Optimizer, loss: tf.Tensor
  ) -> tuple[list[tf.Tensor], list[tf.Tensor], tf.Tensor]:
    """Computes g, and reads x before anything changes it.

    Args:
      optimizer: tf.train.Optimizer of this worker.
      loss: float32 scalar tensor.

    Returns:
      (gradients, positions, step): lists like the copies, of g and of x, and
      an int64 scalar tensor, how many steps this worker has done.
    """
    gradients = self.compute_gradients(optimizer, loss)
    if self._momentum:
      self._velocities = self.make_zeros('velocity', are_sums=True)
    # The copies hold x + delta v, which the model has read for g.
    with tf.control_dependencies(gradients):
      positions = self._read_positions()
    step = self.count_local_step([*gradients, *positions])
    return gradients, positions, step

  def _read_positions(self) -> list[tf.Tensor]:
    """Returns x, computed from x + delta v."""
    values = self.read()
    if not self._momentum:
      return values
    return [
      value - tf.cast(self._momentum * velocity.read_value(), value.dtype)
      for value, velocity in zip(values, self._velocities, strict=True)
    ]

  def end_step(
    self, optimizer: tf.train.Optimizer, gradients: Sequence[tf.Tensor]
  ) -> tf.Operation:
    """Steps v and x, which may have moved since `begin_step`.

    Args:
      optimizer, gradients: those of `begin_step`.

    Returns:
      The op, which waits for the control dependencies at this point.
    """
    gradients = [tf.identity(g) for g in gradients]
    if not self._momentum:
      return self.local_step(optimizer, gradients)
    gradients = [sums.widen(g) for g in gradients]
    before = [v.read_value() for v in self._velocities]
    with tf.control_dependencies(before):
      shrunk = variable_lists.assign_all(
        self._velocities, [self._momentum * v for v in before]
      )
    with tf.control_dependencies([shrunk]), local_copies.local_variables():
      stepped = optimizer.apply_gradients(
        list(zip(gradients, self._velocities, strict=True))
      )
    # The copies next hold x + delta v with the new v and x = x + v'.
    with tf.control_dependencies([stepped]):
      changes = [
        (1 + self._momentum) * v.read_value() - self._momentum * old
        for v, old in zip(self._velocities, before, strict=True)
      ]
    return self.add(changes)
