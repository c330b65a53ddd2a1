"""The sparse tables of a model, and the rows that its step looks up in them."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import tensorflow.compat.v1 as tf

from distmnist.tables import (
  key_table,
  new_rows,
  row_counts,
  row_exchange,
  sparse_table,
  tables_apart,
)


class Rows:
  """All tables of a model.

  Attributes:
    exchanges: list of row_exchange.RowExchange, one for each width and kind.
    makes_rows: bool, whether a step makes rows for keys that have none.
  """

  def __init__(self, cluster, wire) -> None:
    self._cluster = cluster
    self._wire = wire
    self._tables = {}
    self.makes_rows = True
    self.exchanges = []

  def __bool__(self) -> bool:
    return bool(self._tables)

  @property
  def is_apart(self) -> bool:
    """Whether there are tables, and tables_apart.py trains them."""
    return bool(self) and tables_apart.is_wanted()

  def get(
    self, getter: Callable[..., Any], name: str, **settings
  ) -> key_table.KeyTable | sparse_table.Table:
    """Returns the sparse_table.Table `name`, made if it does not exist."""
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
    self, parts: list[tf.Tensor], devices: list[str]
  ) -> list[tf.Tensor]:
    """Pulls all rows that were looked up, and what can travel with them.

    Args:
      parts: list of tensors.
      devices: list of str, those of `parts`.

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
    gradients: list[tf.Tensor],
    begins,
    unless: tf.Tensor | None = None,
  ):
    """Pushes gradients of rows, and what can travel with them.

    Args:
      parts, devices, begins, unless: see transport.Wire.to_ps.
      gradients: list like `views`, or [] if rows are pushed apart.

    Returns:
      (the `parts` on their devices, list of (tf.IndexedSlices, shard)).
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

  def push(self, gradients: list[tf.Tensor]):
    """Pushes gradients like `views`; returns (tf.IndexedSlices, shard)s."""
    return self.push_with([], [], gradients, None)[1]

  def _request(self) -> list[tf.Tensor]:
    """Sends the ps the keys of the step; returns their rows there, a list."""
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
    self, tensors: list[tf.Tensor]
  ) -> list[tuple[row_exchange.RowExchange, list]]:
    """Returns [(exchange, those of a list of tensors, one a ps, for it)]."""
    left = iter(tensors)
    return [
      (exchange, list(itertools.islice(left, len(exchange.devices))))
      for exchange in self.exchanges
    ]

  @property
  def tables(self) -> dict[str, sparse_table.Table]:
    """{name: sparse_table.Table}, by their names in the graph."""
    return dict(self._tables)

  @property
  def views(self) -> list[tf.Tensor]:
    """The tensors [n, width] by which the loss is differentiated, a list."""
    return [exchange.view for exchange in self.exchanges]

  @property
  def pulled(self):
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


def _chain(lists):
  return list(itertools.chain.from_iterable(lists))
