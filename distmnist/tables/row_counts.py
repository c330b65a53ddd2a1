"""How many rows of sparse tables a step moves, by table and by ps.

The keys of the step tell all of this anyway: only a few numbers are added, and
they are fetched with the loss.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

import tensorflow.compat.v1 as tf

from distmnist import graph_record
from distmnist.common import names
from distmnist.tables import sparse_table

if TYPE_CHECKING:
  from distmnist.tables import row_exchange
  from distmnist.transport import wire as wire_lib

_Number = TypeVar('_Number')

_KEY_BYTES = 8


def note(
  exchanges: Sequence[row_exchange.RowExchange],
  wire: wire_lib.Wire,
  cpu_device: str,
) -> None:
  """Notes the counts of a step in the graph.

  Args:
    exchanges: already connected.
    cpu_device: the worker's.
  """
  of_ps: dict[int, list[tf.Tensor]] = {}
  bytes_of: dict[str, list[tf.Tensor]] = {}
  with tf.device(cpu_device), tf.name_scope('row_counts'):
    for exchange in exchanges:
      row_bytes = 2 * exchange.width * wire.size_of(exchange.dtype)
      for shard, count in exchange.count_by_shard():
        device = tf.DeviceSpec.from_string(shard.device)
        if device.job == 'ps':
          of_ps.setdefault(device.task, []).append(count)
        bytes_of.setdefault(sparse_table.find_name(shard), []).append(
          count * (row_bytes + _KEY_BYTES)
        )
    numbers = {
      names.ROW_IDS: tf.add_n([e.num_ids for e in exchanges]),
      names.ROWS_DIFFERENT: tf.add_n(
        [exchange.num_keys for exchange in exchanges]
      ),
    }
    for ps, counts in sorted(of_ps.items()):
      numbers[f'{names.ROWS_OF_PS}{ps}'] = tf.add_n(counts)
    for name, counts in bytes_of.items():
      numbers[f'{names.ROW_BYTES_OF}{name}'] = tf.add_n(counts)
  graph_record.current().row_counts = numbers


def find() -> dict[str, tf.Tensor]:
  """Returns {name: int64 scalar tensor} of the default graph, {} if none."""
  return graph_record.current().row_counts


def choose(values: Mapping[str, _Number]) -> dict[str, _Number]:
  """Returns those entries of {name: number} that are about rows."""
  return {n: x for n, x in values.items() if n.startswith(names.ROWS)}
