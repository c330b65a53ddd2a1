"""What the builders of a graph leave for each other: one object for a graph.

A model is built by its user's code and by Keras, which pass no object of ours
on to the layers that they call: so a graph keeps the record itself.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import tensorflow.compat.v1 as tf

# The graph collection that has the record.
_COLLECTION = 'distmnist/graph'


@dataclasses.dataclass
class GraphRecord:
  """What is known of a graph besides its ops; each field has its one owner.

  Attributes:
    seed: int, what draws depend on, or None; data/seeds.py.
    place: int64 scalar tensor, the place of the batch, or None; data/seeds.py.
    step_rows: list of data/step_rows.StepRows.
    optional: list of tf.Variable that an old checkpoint may lack.
    copies: list of tf.Variable, local ones of the rule, which are set back when
      a session is lost; exchange/copies/local_copies.py.
    center_names: {name of a worker's own variable: the whole name of that of
      the center which it is a copy of, or lies beside};
      exchange/copies/local_copies.py.
    sliced_losses: list of nn/gradient_accumulation.SlicedLoss.
    other_names: {name of a variable: callable(names in a checkpoint) -> the
      name there, or None}, asked if a checkpoint lacks the variable's own name.
    initial_values: list of (name, callable); transport/fed_initial_values.py.
    first_values: list of callables; there, too.
    model_state: transport/model_state.ModelState, or None.
    exchanges: list of exchange/copies/periodic_exchange.Exchange.
    pulls: list of ops by which a worker copies the center, as its session
      begins; exchange/locked_center.py.
    not_pushed, not_pulled: lists of shards that do not travel in a step;
      exchange/center/center.py.
    messages: list of (name, device) of the queues that count messages which
      were not finite; transport/nonfinite.py.
    averages: list of transport/weight_averages.WeightAverages.
    plateau: nn/plateau.Plateau, or None.
    row_counts: {name: int64 scalar tensor}; tables/row_counts.py.
    gradients_apart: list of (table_rows.Rows, gradients);
      tables/tables_apart.py.
    row_holds: list of (op, op); tables/row_reuse.py.
    open_shards: list of tables/key_shard.KeyShard.
    key_maps: list of tables/key_map.KeyMap.
    key_tables: list of tables/key_table.KeyTable.
    first_rows: list of tables/first_rows.FirstRows.
    plain_tables: list of tables/key_table.PlainTable.
    touched_rows: list of tables/touched_rows.TouchedRows.
  """

  graph: tf.Graph
  seed: int | None = None
  place: Any = None
  step_rows: list = dataclasses.field(default_factory=list)
  optional: list = dataclasses.field(default_factory=list)
  copies: list = dataclasses.field(default_factory=list)
  center_names: dict = dataclasses.field(default_factory=dict)
  sliced_losses: list = dataclasses.field(default_factory=list)
  other_names: dict = dataclasses.field(default_factory=dict)
  initial_values: list = dataclasses.field(default_factory=list)
  first_values: list = dataclasses.field(default_factory=list)
  model_state: Any = None
  exchanges: list = dataclasses.field(default_factory=list)
  pulls: list = dataclasses.field(default_factory=list)
  not_pushed: list = dataclasses.field(default_factory=list)
  not_pulled: list = dataclasses.field(default_factory=list)
  messages: list = dataclasses.field(default_factory=list)
  averages: list = dataclasses.field(default_factory=list)
  plateau: Any = None
  row_counts: dict = dataclasses.field(default_factory=dict)
  gradients_apart: list = dataclasses.field(default_factory=list)
  row_holds: list = dataclasses.field(default_factory=list)
  open_shards: list = dataclasses.field(default_factory=list)
  key_maps: list = dataclasses.field(default_factory=list)
  key_tables: list = dataclasses.field(default_factory=list)
  first_rows: list = dataclasses.field(default_factory=list)
  plain_tables: list = dataclasses.field(default_factory=list)
  touched_rows: list = dataclasses.field(default_factory=list)


def current() -> GraphRecord:
  """Returns the GraphRecord of the default graph."""
  return of(tf.get_default_graph())


def of(graph: tf.Graph) -> GraphRecord:
  """Returns the record of a graph, which is made with the first call.

  The graph of a function begins with what the graph around it knew, and keeps
  what it adds to itself: its tensors are of no use outside.
  """
  found = graph.get_collection_ref(_COLLECTION)
  if not found:
    found.append(GraphRecord(graph))
  elif found[0].graph is not graph:
    copies = {
      name: value.copy()
      for name, value in vars(found[0]).items()
      if isinstance(value, (list, dict))
    }
    found[0] = dataclasses.replace(found[0], graph=graph, **copies)
  return found[0]


def forget(graph: tf.Graph) -> None:
  """Removes the record, as no file could hold what is in it."""
  graph.clear_collection(_COLLECTION)
