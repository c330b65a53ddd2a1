"""What a model's sparse tables move in a step, measured on its own data."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import tensorflow.compat.v1 as tf

from distmnist.cluster import cluster as cluster_lib
from distmnist.exchange.center import center as center_lib
from distmnist.tables import key_table, sparse_table
from distmnist.training.problems import problem as problem_lib
from distmnist.training.problems import problem_data
from distmnist.transport import wire as wire_lib

# How many batches are measured, the first ones of the data.
_NUM_BATCHES = 10
# At most this many tables are named with their hottest rows.
_MAX_TABLES = 3


class Rows(NamedTuple):
  """What one step of one worker moves for all tables, on average.

  Attributes:
    num_ids: all ids in a batch.
    num_keys: the distinct ones, whose rows move.
    pulled, pushed: bytes.
    hottest: {name of a table: (what its most frequent row is called, that row's
      share of the table's ids)}; only tables of which a batch has an id.
  """

  num_ids: float
  num_keys: float
  pulled: float
  pushed: float
  hottest: dict[str, tuple[str, float]]

  def format(self) -> str:
    """Returns two human-readable lines; one if the batches have no ids."""
    if not self.hottest:
      return 'rows a step: none, as the first batches have no ids'
    hottest = sorted(self.hottest.items(), key=lambda item: -item[1][1])
    parts = [
      f'{row} is {share:.1%} of the ids of {name}'
      for name, (row, share) in hottest[:_MAX_TABLES]
    ]
    return f'{self._format_rows()}\nhottest rows: {"; ".join(parts)}'

  def _format_rows(self) -> str:
    return (
      f'rows a step: {self.num_ids:,.0f} ids, of which {self.num_keys:,.0f} '
      f'({self.num_keys / self.num_ids:.0%}) are different; pulls '
      f'{self.pulled:,.0f} and pushes {self.pushed:,.0f} bytes more'
    )


def measure(
  cluster: cluster_lib.Cluster, problem: problem_lib.Problem, batch_size: int
) -> Rows | None:
  """Returns the Rows of a step; None if the model has no table.

  Args:
    cluster: cluster.Cluster that will train.
    problem: its training data are loaded.
  """
  split = problem_data.load_train_split(problem)
  with problem_lib.open_graph():
    fed = [
      tf.placeholder(leaf.dtype, [None, *leaf.shape])
      for leaf in split.spec.arrays()
    ]
    x = split.pack(fed).preprocess(problem.preprocess, is_training=True).x
    center = center_lib.Center(cluster_lib.Cluster())
    with center.scope():
      problem.build(x, is_training=True)
    exchanges = center.rows.exchanges
    if not exchanges:
      return None
    numbers = [(e.num_ids, e.num_keys) for e in exchanges]
    tables = {name: t for name, t in center.rows.tables.items() if t.lookups}
    ids = {
      name: tf.concat([keys for keys, _ in table.lookups], 0)
      for name, table in tables.items()
    }
    found, seen = [], []
    with tf.Session(config=tf.ConfigProto(device_count={'GPU': 0})) as session:
      session.run(tf.tables_initializer())
      for start in range(0, batch_size * _NUM_BATCHES, batch_size):
        some = split.slice(start, start + batch_size)
        if some.num_examples:
          arrays = dict(zip(fed, some.arrays(), strict=True))
          counted, looked_up = session.run((numbers, ids), arrays)
          found.append(counted)
          seen.append(looked_up)
  means = np.mean(found, 0)
  wire, pulled, pushed = wire_lib.Wire(cluster), 0, 0
  for exchange, (_, num_keys) in zip(exchanges, means, strict=True):
    values = num_keys * exchange.width * wire.size_of(exchange.dtype)
    pulled += values
    pushed += values + 8 * (num_keys + exchange.count_numbers(cluster.num_ps))
  hottest = {}
  for name, table in tables.items():
    keys = np.concatenate([part[name] for part in seen])
    if keys.size:
      hottest[name.rpartition('/')[0]] = _find_hottest(table, keys)
  num_ids, num_keys = means.sum(0)
  return Rows(num_ids, num_keys, pulled, pushed, hottest)


def _find_hottest(
  table: sparse_table.Table, keys: np.ndarray
) -> tuple[str, float]:
  """Returns (what the most frequent row is called, its share of the lookups).

  Args:
    keys: int64 [n], all that were looked up, at least one.
  """
  keys, counts = np.unique(keys, return_counts=True)
  key = int(keys[counts.argmax()])
  if isinstance(table, key_table.KeyTable):
    is_text = table.start.kind == 'text'
    called = 'one text' if is_text else f'key {key}'
  else:
    num_positions = sum(int(shard.shape[0]) for shard in table.shards)
    called = f'row {sparse_table.find_id(key, num_positions)}'
  return called, counts.max() / counts.sum()
