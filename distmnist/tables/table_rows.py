"""The sparse tables of a model, and the rows that its step looks up in them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import tensorflow.compat.v1 as tf

from distmnist.tables import (
  key_table,
  new_rows,
  row_counts,
  row_exchange,
  sparse_table,
  tables_apart,
)

if TYPE_CHECKING:
  from distmnist.cluster import cluster as cluster_lib
  from distmnist.transport import wire as wire_lib

_Item = TypeVar('_Item')
# The gradient of a shard's rows, and the shard.
Pairs = list[tuple[tf.IndexedSlices, tf.Variable]]


class Rows:
  """All tables of a model.

  Attributes:
    exchanges: one for each width and kind.
    makes_rows: whether a step makes rows for keys that have none.
  """

  def __init__(self, cluster: cluster_lib.Cluster, wire: wire_lib.Wire) -> None:
    self._cluster = cluster
    self._wire = wire
    self._tables: dict[str, sparse_table.Table] = {}
    self.makes_rows = True
    self.exchanges: list[row_exchange.RowExchange] = []

  def __bool__(self) -> bool:
    return bool(self._tables)

  @property
  def is_apart(self) -> bool:
    """Whether there are tables, and tables_apart.py trains them."""
    return bool(self) and tables_apart.is_wanted()

  def get(
    self, getter: Callable[..., Any], name: str, **settings: Any
  ) -> sparse_table.Table:
    """Returns the table `name`, made if it does not exist."""
    if name not in self._tables:
      is_made = isinstance(settings.get('initializer'), new_rows.Start)
      make = (key_table if is_made else sparse_table).make
      self._tables[name] = make(
        getter,
        name,
        self._cluster.num_ps,
        self._cluster.compute_device,
        **settings,
      )
      self._tables[name].makes_rows = is_made and self.makes_rows
    return self._tables[name]

  def pull_with(
    self, parts: Sequence[tf.Tensor], devices: Sequence[str]
  ) -> list[tf.Tensor]:
    """Pulls all rows that were looked up, and what can travel with them.

    Args:
      devices: those of `parts`.

    Returns:
      The `parts` on the worker.
    """
    rows = self._request()
    arrived = self._wire.to_worker([*parts, *rows], [*devices, *self._devices])
    for exchange, of_it in self._of_each(arrived[len(parts) :]):
      exchange.receive(of_it)
    return arrived[: len(parts)]

  def push_with(
    self,
    parts: list[tf.Tensor],
    devices: list[str],
    gradients: Sequence[tf.Tensor],
    begins: dict[int, tf.Operation] | None,
    unless: tf.Tensor | None = None,
  ) -> tuple[list[tf.Tensor], Pairs]:
    """Pushes gradients of rows, and what can travel with them.

    Args:
      parts, devices, begins, unless: see transport.Wire.to_ps.
      gradients: like `views`, or [] if rows are pushed apart.

    Returns:
      (the `parts` on their devices, the gradients of shards there).
    """
    if not gradients:
      return self._wire.to_ps(parts, devices, begins, unless), []
    pairs = zip(self.exchanges, gradients, strict=True)
    rows = _chain(exchange.cut(gradient) for exchange, gradient in pairs)
    arrived = self._wire.to_ps(
      [*parts, *rows], [*devices, *self._devices], begins, unless
    )
    pushed = self._of_each(arrived[len(parts) :])
    return arrived[: len(parts)], _chain(e.take(of_it) for e, of_it in pushed)

  def push(self, gradients: Sequence[tf.Tensor]) -> Pairs:
    """Pushes gradients like `views`."""
    return self.push_with([], [], gradients, None)[1]

  def _request(self) -> list[tf.Tensor]:
    """Sends the ps the keys of the step; returns their rows there."""
    kinds = {}
    for table in self._tables.values():
      kind = table.width, table.dtype, type(table)
      kinds.setdefault(kind, []).append(table)
    for tables in kinds.values():
      exchange = row_exchange.RowExchange(
        tables,
        self._wire,
        self._cluster.cpu_device,
        self._cluster.compute_device,
      )
      self.exchanges.append(exchange)
    requested = [exchange.request() for exchange in self.exchanges]
    if self.exchanges:
      row_counts.note(self.exchanges, self._wire, self._cluster.cpu_device)
    return _chain(requested)

  @property
  def _devices(self) -> list[str]:
    return _chain(exchange.devices for exchange in self.exchanges)

  def _of_each(
    self, tensors: Iterable[tf.Tensor]
  ) -> list[tuple[row_exchange.RowExchange, list[tf.Tensor]]]:
    """Returns each exchange with those of the tensors, one a ps, for it."""
    left = iter(tensors)
    return [
      (exchange, list(itertools.islice(left, len(exchange.devices))))
      for exchange in self.exchanges
    ]

  @property
  def tables(self) -> dict[str, sparse_table.Table]:
    """By their names in the graph."""
    return dict(self._tables)

  @property
  def views(self) -> list[tf.Tensor]:
    """What the loss is differentiated by, [n, width] each."""
    return [exchange.view for exchange in self.exchanges]

  @property
  def pulled(self) -> list[tf.Tensor]:
    """The rows that were pulled, on their ps, in the order of `push`."""
    return [rows for exchange in self.exchanges for rows in exchange.pulled]

  def count_bytes(self) -> tuple[int | tf.Tensor, int | tf.Tensor]:
    """Returns the bytes (pulled, pushed) of a step: 0 or int64 scalars."""
    pulled = pushed = 0
    with tf.device(self._cluster.cpu_device):
      for exchange in self.exchanges:
        pulled += exchange.count_bytes_pulled()
        pushed += exchange.count_bytes_pushed()
    return pulled, pushed


def _chain(lists: Iterable[Iterable[_Item]]) -> list[_Item]:
  return list(itertools.chain.from_iterable(lists))
