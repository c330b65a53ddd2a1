"""Columns of several types as one array, in which no whole number is lost.

NumPy makes floats of whole numbers beside floats, and a graph computes in
float32: ids above 16,777,216 would become those of others.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

# float32 has each whole number up to this.
_MAX_EXACT = 1 << 24


def check(
  names: Iterable[Any], columns: Iterable[Any], found: np.ndarray
) -> None:
  """Checks that whole numbers are what they were in one array of columns.

  Args:
    names: of the columns.
    columns: arrays [n, ...], or numbers.
    found: what NumPy has made of them.

  Raises:
    ValueError: one of them has a number that float32 does not have.
  """
  if found.dtype.kind != 'f':
    return
  for name, column in zip(names, columns, strict=True):
    largest = _find_largest(column)
    if largest > _MAX_EXACT:
      raise ValueError(
        f'{name} of the columns {", ".join(map(str, names))} has whole numbers '
        f'up to {largest:,}, and float32, which they become side by side, has '
        f'each only up to {_MAX_EXACT:,}: give it a place of its own, as in '
        f'x={{{name!r}: ...}}, or make it float32 if its last digits do not '
        'count'
      )


def _find_largest(column: Any) -> int:
  """Returns the largest absolute value of whole numbers; 0 of others."""
  if isinstance(column, float):  # A row of Spark has millions of them.
    return 0
  if isinstance(column, int):
    return abs(column)
  column = np.asarray(column)
  if column.dtype.kind not in 'iu' or not column.size:
    return 0
  return max(int(column.max()), -int(column.min()))


def make_array(values: Any) -> np.ndarray:
  """Returns np.asarray(values), with the columns of a DataFrame checked.

  Raises:
    ValueError: see `check`.
  """
  found = np.asarray(values)
  if hasattr(values, 'columns') and hasattr(values, 'items'):
    names, columns = zip(*values.items(), strict=True)
    check(names, columns, found)
  return found
