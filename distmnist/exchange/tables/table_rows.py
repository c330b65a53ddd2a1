"""The sparse tables of a model, and the rows that its step looks up in them."""

import tensorflow.compat.v1 as tf

from distmnist.exchange.tables import (
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

  def __init__(self, cluster, wire):
    self._cluster = cluster
    self._wire = wire
    self._tables = {}
    self.makes_rows = True
    self.exchanges = []

  def __bool__(self):
    return bool(self._tables)

  @property
  def is_apart(self):
    """Whether there are tables, and tables_apart.py trains them."""
    return bool(self) and tables_apart.is_wanted()

  def get(self, getter, name, **settings):
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

  def connect(self):
    """Gives their values to all rows that were looked up."""
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
      exchange.connect()
      self.exchanges.append(exchange)
    if self.exchanges:
      row_counts.note(self.exchanges, self._wire, self._cluster.cpu_device)

  @property
  def tables(self):
    """{name: sparse_table.Table}, by their names in the graph."""
    return dict(self._tables)

  @property
  def views(self):
    """The tensors [n, width] by which the loss is differentiated, a list."""
    return [exchange.view for exchange in self.exchanges]

  def push(self, gradients):
    """Pushes gradients like `views`; returns (tf.IndexedSlices, shard)s."""
    return [
      pair
      for exchange, gradient in zip(self.exchanges, gradients, strict=True)
      for pair in exchange.push(gradient)
    ]

  @property
  def pulled(self):
    """The rows that were pulled, on their ps, in the order of `push`."""
    return [rows for exchange in self.exchanges for rows in exchange.pulled]

  def count_bytes(self):
    """Returns the bytes (pulled, pushed) of a step: 0 or int64 scalars."""
    pulled = pushed = 0
    with tf.device(self._cluster.cpu_device):
      for exchange in self.exchanges:
        pulled += exchange.count_bytes_pulled()
        pushed += exchange.count_bytes_pushed()
    return pulled, pushed
