"""Which columns of a table are x, y and the weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf

from distmnist.data import mixed_columns


def names(nest: Any) -> list[str]:
  """Returns the names of the columns in a nest, each once."""
  return list(dict.fromkeys(_flatten(nest)))


def select(nest: Any, columns: Mapping[str, np.ndarray]) -> Any:
  """Returns the nest with arrays in place of the columns' names.

  Args:
    nest: a name, for its column [n, ...]; a list of names, for their columns of
      numbers side by side, [n, len(list)]; or a dict or tuple of these.
    columns: {name: array [n, ...]}.

  Raises:
    ValueError: of columns side by side, some are text and some are not, their
      shapes differ, or whole numbers would be lost among floats.
  """
  if isinstance(nest, dict):
    return {name: select(part, columns) for name, part in nest.items()}
  if isinstance(nest, tuple):
    return tuple(select(part, columns) for part in nest)
  if isinstance(nest, list):
    texts = [name for name in nest if columns[name].dtype == object]
    if texts and len(texts) < len(nest):
      raise ValueError(
        f'{", ".join(texts)} of the columns {", ".join(nest)} is text, or has '
        'fields that are no numbers: expected numbers in all of them'
      )
    parts = [columns[name] for name in nest]
    if len({part.shape for part in parts}) > 1:
      raise ValueError(
        f'the columns {", ".join(nest)} do not go side by side: one has lists, '
        'and another numbers, or lists of another length'
      )
    found = np.stack(parts, axis=1)
    mixed_columns.check(nest, parts, found)
    return found
  return columns[nest]


def check(nest: Any, known: Sequence[str], path: str) -> None:
  """Raises ValueError if a name is not that of one of a table's columns.

  Args:
    nest: see `select`.
    known: the columns that exist.
    path: the file of the table.
  """
  for name in names(nest):
    if name not in known:
      raise ValueError(
        f'{path} has no column {name!r}: it has {", ".join(known) or "none"}'
      )
    if known.count(name) > 1:
      raise ValueError(
        f'{path} has {known.count(name)} columns {name!r}: expected one'
      )


def _flatten(nest: Any) -> list[str]:
  return [str(name) for name in tf.nest.flatten(nest)]
