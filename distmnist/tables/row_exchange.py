"""The rows of a step: pulled by the ids of its batch, pushed as gradients.

  worker     all ids of the step, each once and in order -> a ps: its ids
  ps         their rows -> worker, which computes with them
  worker     one gradient a row -> a ps, which has kept the ids

That is one message each way for the pull and one for the push, for all tables
of one width together; nothing depends on how large the tables are. A key stands
for a row of any of these tables (row_numbering.py). The keys of a shard are
contiguous, so what goes to a shard and comes from it is cut out and put
together by position alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import tensorflow.compat.v1 as tf

from distmnist import tf_internals
from distmnist.tables import row_numbering, shared_rows

if TYPE_CHECKING:
  from distmnist.tables import sparse_table
  from distmnist.transport import wire as wire_lib


class _Kept(NamedTuple):
  """What a ps keeps for a shard from the pull to the push.

  Attributes:
    rows: int64 [n], in order, each once.
    pulled: [n, width], their values.
    owners: int32 [keys], which of `rows` is each key's; None if it is the one
      at the key's own position.
    owned: see row_numbering.Numbering.find_owned.
  """

  shard: tf.Variable
  rows: tf.Tensor
  pulled: tf.Tensor
  owners: tf.Tensor | None
  owned: tuple[tf.Variable, tf.Tensor] | None

  @property
  def sent(self) -> tf.Tensor:
    """What a worker gets, [keys, width]."""
    if self.owners is None:
      return self.pulled
    return tf.gather(self.pulled, self.owners)

  @property
  def num_keys(self) -> tf.Tensor:
    return tf.size(self.rows if self.owners is None else self.owners)

  def sum_up(self, value: tf.Tensor) -> tf.IndexedSlices:
    """Returns the gradient of the shard; `value` is [keys, width]."""
    if self.owners is not None:
      value = tf.math.unsorted_segment_sum(
        value, self.owners, tf.size(self.rows)
      )
    if self.owned is not None:
      value = self._leave_others(value, *self.owned)
    shape = tf.constant(self.shard.shape.as_list(), tf.int64)
    return tf.IndexedSlices(value, self.rows, shape)

  def _leave_others(
    self, value: tf.Tensor, keys: tf.Variable, before: tf.Tensor
  ) -> tf.Tensor:
    """Returns the gradient of `rows`, zeros for those of other keys by now.

    A worker that was stalled may push into a center that was restored since it
    pulled, in which its rows are not yet made, or were made for other keys.
    """
    with tf.control_dependencies([value]):
      is_same = tf.equal(keys.sparse_read(self.rows), before)
    return value * tf.cast(is_same, value.dtype)[:, tf.newaxis]


def _split(tensor: tf.Tensor, sizes: Sequence[tf.Tensor]) -> list[tf.Tensor]:
  """Returns parts of a tensor [n, ...]; `sizes` are scalars."""
  if len(sizes) == 1:
    return [tensor]
  return tf.split(tensor, tf.stack(sizes), num=len(sizes))


def _read_rows(
  numbering: row_numbering.Numbering, shard: tf.Variable, keys: tf.Tensor
) -> _Kept:
  rows, owners = numbering.find_rows(shard, keys)
  owned = numbering.find_owned(shard, rows)
  return _Kept(shard, rows, shard.sparse_read(rows), owners, owned)


class RowExchange:
  """The tables of one width, and their rows in this step.

  Attributes:
    view: [n, width] on the worker, the rows that were pulled: the loss
      is differentiated by it. Its gradient is dense, one row per key.
    num_ids, num_keys: int64 scalars on the worker, the number of ids in
      the step and of different ones among them.
  """

  def __init__(
    self,
    tables: Sequence[sparse_table.Table],
    wire: wire_lib.Wire,
    cpu_device: str,
    compute_device: str,
  ) -> None:
    """
    Args:
      tables: all of one kind.
      cpu_device, compute_device: the worker's.
    """
    self._num_tables = len(tables)
    self._numbering = tables[0].make_numbering(tables)
    self._places = self._numbering.places
    self._wire = wire
    self._cpu, self._compute = cpu_device, compute_device
    self.width, self.dtype = tables[0].width, tables[0].dtype
    self._kept: list[list[_Kept]] = []  # Of each ps, its shards.

  @property
  def devices(self) -> list[str]:
    """The ps that have shards of the tables."""
    return [device for device, _ in self._places]

  def request(self) -> list[tf.Tensor]:
    """Sends keys to the ps; returns their rows on each, [n, width]."""
    with tf.name_scope('rows'), tf.device(self._cpu):
      keys, self._places_of_ids, numbers = self._numbering.find_keys()
      self._num_keys_of_shards = tf.split(
        numbers, [len(shards) for _, shards in self._places]
      )
      self._num_keys_of_ps = [
        tf.reduce_sum(numbers) for numbers in self._num_keys_of_shards
      ]
      keys_of_ps = _split(keys, self._num_keys_of_ps)
      self.num_ids = tf.size(self._places_of_ids.of_ids, out_type=tf.int64)
      self.num_keys = tf.size(keys, out_type=tf.int64)
      return [
        self._request_from(device, shards, numbers, part)
        for (device, shards), numbers, part in zip(
          self._places, self._num_keys_of_shards, keys_of_ps, strict=True
        )
      ]

  def receive(self, parts: Sequence[tf.Tensor]) -> None:
    """Gives all lookups their values.

    Args:
      parts: the rows of `request`, on the worker.
    """
    lookups = self._numbering.lookups
    with tf.name_scope('rows'), tf.device(self._compute):
      self.view = shared_rows.join(parts)
      # Each key's gradient is summed up here, before it is clipped and sent.
      given = _split(
        shared_rows.gather(self.view, self._places_of_ids),
        [tf.size(positions) for positions, _ in lookups],
      )
    for (_, wanted), value in zip(lookups, given, strict=True):
      with tf.device(self._compute):
        value.set_shape(wanted.shape)
      tf_internals.set_input(wanted.op, 0, value)

  def _request_from(
    self,
    device: str,
    shards: list[tf.Variable],
    numbers: tf.Tensor,
    keys: tf.Tensor,
  ) -> tf.Tensor:
    """Sends a ps its keys; returns their rows there, [n, width]."""
    header = len(shards) if len(shards) > 1 else 0
    if header:
      keys = tf.concat([numbers, keys], 0)
    [keys] = self._wire.to_ps([keys], [device])
    with tf.device(device):
      # A copy of this step begins where the step before it has ended, and its
      # reads must wait for that: see graph_copy.Copier.
      begin = tf.no_op('begin')
      parts = [keys]
      if header:
        parts = tf.split(keys[header:], keys[:header], num=header)
      with tf.control_dependencies([begin]):
        pairs = zip(shards, parts, strict=True)
        kept = [_read_rows(self._numbering, *pair) for pair in pairs]
      rows = shared_rows.join([part.sent for part in kept])
      rows.set_shape([None, self.width])
    self._kept.append(kept)
    return rows

  def cut(self, gradient: tf.Tensor) -> list[tf.Tensor]:
    """Returns the parts for `devices` of the gradient by `view`."""
    with tf.device(self._compute):
      parts = _split(gradient, self._num_keys_of_ps)
    for part in parts:
      part.set_shape([None, self.width])
    return parts

  def take(
    self, parts: Sequence[tf.Tensor]
  ) -> list[tuple[tf.IndexedSlices, tf.Variable]]:
    """Returns the gradients of the shards.

    Args:
      parts: those of `cut`, each on its ps.

    Returns:
      (gradient, shard)s, on the shard's ps; rows are in order, each once.
    """
    pairs = []
    for (device, _), kept, arrived in zip(
      self._places, self._kept, parts, strict=True
    ):
      with tf.device(device):
        values = _split(arrived, [part.num_keys for part in kept])
        for part, value in zip(kept, values, strict=True):
          value.set_shape([None, self.width])
          pairs.append((part.sum_up(value), part.shard))
    return pairs

  @property
  def pulled(self) -> list[tf.Tensor]:
    """The rows as they were pulled, in the order of `take`."""
    return [part.pulled for kept in self._kept for part in kept]

  def count_by_shard(self) -> list[tuple[tf.Variable, tf.Tensor]]:
    """Returns (shard, int64 scalar)s: the number of its rows here."""
    return [
      (shard, numbers[i])
      for (_, shards), numbers in zip(
        self._places, self._num_keys_of_shards, strict=True
      )
      for i, shard in enumerate(shards)
    ]

  def count_bytes_pulled(self) -> tf.Tensor:
    """Returns the bytes of this step's rows on the wire, int64 scalar."""
    return self.num_keys * self.width * self._wire.size_of(self.dtype)

  def count_bytes_pushed(self) -> tf.Tensor:
    """Returns the bytes of its keys and of their gradients, int64 scalar."""
    num_numbers = sum(len(s) for _, s in self._places if len(s) > 1)
    return self.count_bytes_pulled() + (self.num_keys + num_numbers) * 8

  def count_numbers(self, num_ps: int) -> int:
    """Returns how many numbers precede the keys sent to `num_ps` ps.

    They are for ps that have shards of several tables, as all ps here do.
    """
    return self._num_tables * num_ps if self._num_tables > 1 else 0
