"""The names in a partial checkpoint, which has only some rows of its tables.

Another checkpoint in its folder, its base, is whole. Beside whole variables a
partial checkpoint has

  distmnist/partial_of/BASE                 str, a hash of the index of BASE
  distmnist/touched/0-900/positions/NAME    int64 [n], rows 0 <= r < 900 of NAME
  distmnist/touched/0-900/values/NAME       [n, ...], their values

and so on for the ranges that follow. All other rows are those of the base.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Sequence

# The most bytes of a variable that are saved, restored or copied at once: what
# a save adds to the memory of the chief and of a ps.
SLICE_BYTES = 2**25

_BASE = 'distmnist/partial_of/'
_TOUCHED = 'distmnist/touched/'
_POSITIONS = re.compile(rf'{_TOUCHED}(\d+)-(\d+)/positions/(.+)')


def name_base(base: str) -> str:
  """Returns the name of the tensor that names `base`, a file's name."""
  return _BASE + base


def name_touched(variable: str, begin: int, end: int) -> tuple[str, str]:
  """Returns the names (positions, values) of the touched rows in a range."""
  start = f'{_TOUCHED}{begin}-{end}'
  return f'{start}/positions/{variable}', f'{start}/values/{variable}'


def find_base(names: Iterable[str]) -> str | None:
  """Returns the base of a checkpoint with these names; None if whole."""
  found = (name for name in names if name.startswith(_BASE))
  return next((name.removeprefix(_BASE) for name in found), None)


def find_ranges(names: Iterable[str]) -> dict[str, list[tuple[int, int]]]:
  """Returns {variable: [(begin, end) of a range, ...]} of touched rows."""
  found: dict[str, list[tuple[int, int]]] = {}
  for name in names:
    if match := _POSITIONS.fullmatch(name):
      begin, end, variable = match.groups()
      found.setdefault(variable, []).append((int(begin), int(end)))
  return {variable: sorted(ranges) for variable, ranges in found.items()}


def is_plain(name: str) -> bool:
  """Whether a name in a partial checkpoint is that of a whole variable."""
  return not name.startswith((_BASE, _TOUCHED))


def compute_hash(index: bytes) -> str:
  """Returns the hash of a checkpoint, given its index file.

  The index has a checksum of each tensor.
  """
  return hashlib.sha256(index).hexdigest()


def cut_rows(
  num_rows: int, row_bytes: int, most_bytes: int | None = None
) -> Iterator[tuple[int, int]]:
  """Yields (first, size) of the rows of each slice, in order.

  Args:
    num_rows: all of them.
    row_bytes: what each takes; a row is never cut.
    most_bytes: the most in a slice; None for SLICE_BYTES.
  """
  step = max(1, (most_bytes or SLICE_BYTES) // row_bytes)
  for first in range(0, num_rows, step):
    yield first, min(step, num_rows - first)


def name_place(shape: Sequence[int], first: int, num_rows: int) -> str:
  """Returns rows of a variable as TensorFlow's shape_and_slices name them.

  Args:
    shape: the whole variable's.
  """
  rows = ':'.join([f'{first},{num_rows}', *['-'] * (len(shape) - 1)])
  return f'{" ".join(map(str, shape))} {rows}'
