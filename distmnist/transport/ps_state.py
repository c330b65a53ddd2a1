"""Hash tables and variables on a ps that all workers know by a shared name.

No session initialises them, and no checkpoint has them: what they hold is lost
with their ps. All ops are placed on the current device, which is to be the one
where the table or the variable was made.
"""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow.compat.v1 as tf


class Table:
  """A hash table from int64 to int64, empty at first."""

  def __init__(self, shared_name: str) -> None:
    self._table = tf.raw_ops.MutableHashTableV2(
      key_dtype=tf.int64, value_dtype=tf.int64, shared_name=shared_name
    )

  def find(
    self, keys: int | Sequence[int] | tf.Tensor, default: int | tf.Tensor
  ) -> tf.Tensor:
    """Returns the values of `keys`, int64, in the same shape.

    Args:
      keys: int64.
      default: int64 scalar tensor or int, the value of keys that are not there.
    """
    return tf.raw_ops.LookupTableFindV2(
      table_handle=self._table,
      keys=tf.convert_to_tensor(keys, tf.int64),
      default_value=tf.convert_to_tensor(default, tf.int64),
    )

  def insert(
    self,
    keys: int | Sequence[int] | tf.Tensor,
    values: int | Sequence[int] | tf.Tensor,
  ) -> tf.Operation:
    """Returns the op that gives `keys` new values; arguments as of `find`."""
    return tf.raw_ops.LookupTableInsertV2(
      table_handle=self._table,
      keys=tf.convert_to_tensor(keys, tf.int64),
      values=tf.convert_to_tensor(values, tf.int64),
    )

  def remove(self, keys: tf.Tensor) -> tf.Operation:
    """Returns the op that removes `keys`, int64 [n]."""
    return tf.raw_ops.LookupTableRemoveV2(table_handle=self._table, keys=keys)

  def replace_all(self, keys: tf.Tensor, values: tf.Tensor) -> tf.Operation:
    """Returns the op after which only `keys`, int64 [n], are there."""
    return tf.raw_ops.LookupTableImportV2(
      table_handle=self._table, keys=keys, values=values
    )


class Variable:
  """A variable, to be assigned before anything else is done with it."""

  def __init__(
    self, dtype: tf.DType, shape: Sequence[int], shared_name: str
  ) -> None:
    self._dtype = dtype
    self._handle = tf.raw_ops.VarHandleOp(
      dtype=dtype, shape=shape, shared_name=shared_name
    )

  def read(self) -> tf.Tensor:
    return tf.raw_ops.ReadVariableOp(resource=self._handle, dtype=self._dtype)

  def assign(self, value: float | Sequence[float] | tf.Tensor) -> tf.Operation:
    """Returns the op that sets all of it; `value` is a tensor or a number."""
    return tf.raw_ops.AssignVariableOp(
      resource=self._handle, value=tf.convert_to_tensor(value, self._dtype)
    )

  def add(self, value: float | Sequence[float] | tf.Tensor) -> tf.Operation:
    """Returns the op that adds to all of it."""
    return tf.raw_ops.AssignAddVariableOp(
      resource=self._handle, value=tf.convert_to_tensor(value, self._dtype)
    )

  def gather(self, rows: tf.Tensor) -> tf.Tensor:
    """Returns its rows at `rows`, an int64 tensor of any shape."""
    return tf.raw_ops.ResourceGather(
      resource=self._handle, indices=rows, dtype=self._dtype
    )

  def scatter(self, rows: tf.Tensor, values: tf.Tensor) -> tf.Operation:
    """Returns the op that sets rows; `values` is one for each, or a scalar."""
    return tf.raw_ops.ResourceScatterUpdate(
      resource=self._handle, indices=rows, updates=values
    )

  def scatter_add(self, rows: tf.Tensor, values: tf.Tensor) -> tf.Operation:
    """Returns the op that adds to rows; `values` as of `scatter`."""
    return tf.raw_ops.ResourceScatterAdd(
      resource=self._handle, indices=rows, updates=values
    )
