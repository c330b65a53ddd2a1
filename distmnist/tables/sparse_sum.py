"""An accumulator of gradients of rows, whose mean is over all contributions.

TensorFlow's mean of a row is over only those contributions that have the row,
though a batch without it says that its gradient is 0. Rows of a contribution
must be in order: the accumulator merges sorted lists, and silently keeps rows
twice if a list is not sorted.
"""

from __future__ import annotations

import tensorflow.compat.v1 as tf


class SparseSum:
  """A tf.SparseConditionalAccumulator beside a shard.

  It is used like a tf.ConditionalAccumulator, with tf.IndexedSlices in place of
  tensors.

  Attributes:
    dtype, shape: those of the shard.
  """

  def __init__(self, shard: SparseSum | tf.Variable, shared_name: str) -> None:
    """
    Args:
      shard: [rows, width], or an accumulator beside it; to be called on its
        device.
    """
    self.dtype, self.shape = shard.dtype.base_dtype, shard.shape
    self._shared_name = shared_name
    self._accumulator = tf.SparseConditionalAccumulator(
      self.dtype,
      # It could not be inferred from a contribution without rows.
      shape=self.shape,
      shared_name=shared_name,
      reduction_type='SUM',
    )

  def apply_grad(
    self, gradient: tf.IndexedSlices, local_step: tf.Tensor
  ) -> tf.Operation:
    return self._accumulator.apply_indexed_slices_grad(gradient, local_step)

  def take_grad(self, num_contributions: int | tf.Tensor) -> tf.IndexedSlices:
    """Returns the mean of the contributions."""
    total = self._accumulator.take_indexed_slices_grad(num_contributions)
    return tf.IndexedSlices(
      total.values / num_contributions, total.indices, total.dense_shape
    )

  def take_all(self, step: tf.Tensor) -> tf.Operation:
    """Returns the op that throws away what was contributed, if anything.

    A tf.cond cannot take its handle, so a contribution without rows comes
    first: then there is always something to take.

    Args:
      step: int64 scalar tensor, the accumulator's.
    """
    width = self.shape.as_list()[1]
    nothing = tf.IndexedSlices(
      tf.zeros([0, width], self.dtype),
      tf.zeros([0], tf.int64),
      tf.constant(self.shape.as_list(), tf.int64),
    )
    with tf.control_dependencies([self.apply_grad(nothing, step)]):
      return tf.group(self.take_grad(1).indices)

  def make_same(self) -> SparseSum:
    """Returns the same accumulator, in the current graph and on its device."""
    return SparseSum(self, self._shared_name)

  def num_accumulated(self) -> tf.Tensor:
    return self._accumulator.num_accumulated()

  def set_global_step(self, step: int | tf.Tensor) -> tf.Operation:
    return self._accumulator.set_global_step(step)


def take_all(
  accumulator: SparseSum | tf.ConditionalAccumulator, step: tf.Tensor
) -> tf.Operation | tf.Tensor:
  """Returns the op that throws away what was contributed, if anything.

  Args:
    step: int64 scalar, the accumulator's.
  """
  if isinstance(accumulator, SparseSum):
    return accumulator.take_all(step)
  return tf.cond(
    accumulator.num_accumulated() > 0,
    lambda: tf.group(accumulator.take_grad(1)),
    tf.no_op,
  )


def make_same(
  accumulator: SparseSum | tf.ConditionalAccumulator,
) -> SparseSum | tf.ConditionalAccumulator:
  """Returns the same accumulator in the current graph, on its device."""
  if isinstance(accumulator, SparseSum):
    return accumulator.make_same()
  made = accumulator.accumulator_ref.op
  return tf.ConditionalAccumulator(
    accumulator.dtype,
    tf.TensorShape(made.get_attr('shape')),
    shared_name=made.get_attr('shared_name'),
  )
