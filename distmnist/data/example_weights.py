"""Weights of examples: how much each counts in the loss."""

from __future__ import annotations

import numpy as np


def convert(called: str, values: np.ndarray) -> np.ndarray:
  """Returns numbers as float32 weights.

  Args:
    called: what an error calls them.
    values: numbers.

  Raises:
    ValueError: one is negative, whose loss would be maximised, or not finite.
  """
  with np.errstate(over='ignore'):  # The check names it.
    found = values.astype(np.float32)
  wrong = find_wrong(found)
  if wrong.any():
    raise ValueError(
      f'{called}: {int(wrong.sum()):,} of {found.size:,} weights are negative '
      f'or not finite, such as {found[wrong][0]:g}: expected 0 or more'
    )
  return found


def check_any(called: str, weights: np.ndarray) -> np.ndarray:
  """Returns the weights of all examples; raises ValueError if all are 0."""
  if weights.size and not weights.any():
    raise ValueError(
      f'{called}: all {weights.size:,} weights are 0: expected one or more '
      'above 0, as no example counts'
    )
  return weights


def find_wrong(values: np.ndarray) -> np.ndarray | np.bool_:
  """Returns which numbers are no weights, bool of their shape."""
  return ~((values >= 0) & np.isfinite(values))
