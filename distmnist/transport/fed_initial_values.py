"""Initial values that are given, such as those of a net made elsewhere.

As constants they could make a GraphDef of 100 MB, too large to send to a ps: so
the initializers are zeros, and the values are fed when they run.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import tensorflow.compat.v1 as tf

from distmnist import graph_record, tf_internals

if TYPE_CHECKING:
  import numpy as np


def give(name: str, load: Callable[[], np.ndarray]) -> None:
  """Gives the variable `name` of the default graph its initial value.

  Args:
    name: of the whole variable, however many shards it has.
    load: callable() -> array of the variable's shape and dtype.
  """
  graph_record.current().initial_values.append((name, load))


def give_first(
  load: Callable[[], tuple[dict[str, np.ndarray], dict[str, Any]]],
) -> None:
  """Gives variables their values in a run that begins, in place of any others.

  Args:
    load: callable() -> ({name: array of the variable's shape and dtype}, names
      as in `give`; {table: tables/first_rows.Source} of tables that make rows).
  """
  graph_record.current().first_values.append(load)


def load_first() -> tuple[dict[str, np.ndarray], dict[str, Any]]:
  """Returns what was given to `give_first`, for a run that begins."""
  values, rows = {}, {}
  for load in graph_record.current().first_values:
    of_variables, of_tables = load()
    values |= of_variables
    rows |= of_tables
  return values, rows


def make_feed(
  first: Mapping[str, np.ndarray] = types.MappingProxyType({}),
) -> dict[tf.Tensor, np.ndarray]:
  """Returns what to feed when the variables of the graph are initialised.

  Args:
    first: {name: array}, in place of what was given to `give`.
  """
  values, feed = dict(graph_record.current().initial_values), {}
  for variable in tf.global_variables() if values or first else ():
    cut = tf_internals.get_slice(variable)
    name = cut.full_name if cut else variable.op.name
    if name not in first and name not in values:
      continue
    value = first[name] if name in first else values[name]()
    if cut:
      begin, size = cut.var_offset, cut.var_shape
      value = value[
        tuple(slice(b, b + n) for b, n in zip(begin, size, strict=True))
      ]
    feed[variable.initializer.inputs[1]] = value
  return feed
