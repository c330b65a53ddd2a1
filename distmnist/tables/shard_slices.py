"""The slices in which the shards of tables are saved and restored."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from distmnist import tf_internals
from distmnist.common import partial_names

if TYPE_CHECKING:
  import tensorflow.compat.v1 as tf


class Slice(NamedTuple):
  """Some rows of a shard.

  Attributes:
    begin, end: the rows of the shard.
    first: the row of the whole variable that `begin` is.
    place: where they are in the whole variable, as TensorFlow's
      shape_and_slices.
  """

  begin: int
  end: int
  first: int
  place: str


def cut(shard: tf.Variable, slice_bytes: int) -> Iterator[Slice]:
  """Yields the slices of a shard, in order.

  Args:
    slice_bytes: the most in a slice; a row is never cut.
  """
  _, full_shape, offset = find_place(shard)
  num_rows = int(shard.shape[0])
  # A gather also takes an 8-byte index for each row.
  row_bytes = count_bytes(shard) // num_rows + 8
  for begin, size in partial_names.cut_rows(num_rows, row_bytes, slice_bytes):
    first = offset + begin
    place = partial_names.name_place(full_shape, first, size)
    yield Slice(begin, begin + size, first, place)


def choose_large(
  shards: Sequence[tf.Variable], slice_bytes: int
) -> list[tf.Variable]:
  """Returns those of `shards` whose variable is saved in slices.

  These are all shards of a variable if one of them is larger than a slice: of
  some ps that share a table unevenly, others may have less.
  """
  large = {find_place(v)[0] for v in shards if count_bytes(v) > slice_bytes}
  return [v for v in shards if find_place(v)[0] in large]


def count_bytes(variable: tf.Variable) -> int:
  return variable.shape.num_elements() * variable.dtype.size


def find_place(shard: tf.Variable) -> tuple[str, list[int], int]:
  """Returns (name, shape) of the whole variable, and the first row here."""
  info = tf_internals.get_slice(shard)  # The only place that knows it.
  if info is None:
    return shard.op.name, shard.shape.as_list(), 0
  return info.full_name, list(info.full_shape), info.var_offset[0]
