"""Examples as NumPy files in a folder, written by one process for others.

SPLIT_x_0.npy, ...    the arrays of x; those of y likewise
SPLIT_w_0.npy         the weights of the examples, if they have any
nests.json            {'x': names, 'y': names}; null for a single array, and
                      numbers as the names of a tuple's items
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from distmnist.data import mixed_columns

# Of the arrays in a nest: those of a dict, numbers of a tuple or list, or None
# where there is one array.
_Names = list[str] | list[int] | None
_Folder = str | os.PathLike[str]


def write(folder: _Folder, splits: Mapping[str, tuple]) -> None:
  """Writes examples.

  Args:
    folder: exists.
    splits: {name: (x, y) or (x, y, w)}; x and y are arrays [n, ...], or dicts,
      tuples or lists of arrays; w is an array [n].

  Raises:
    ValueError: an array has objects that are no text, or the splits have other
      names or another number of arrays.
  """
  nests: dict[str, _Names] = {}
  for split, pair in splits.items():
    for side, nest in zip('xyw', pair, strict=False):
      names, arrays = flatten(nest)
      if nests.setdefault(side, names) != names:
        raise ValueError(
          f'{side} of the {split} data is {_describe(names)}: expected '
          f'{_describe(nests[side])}, as in the {next(iter(splits))} data'
        )
      for i, array in enumerate(arrays):
        np.save(path_of(folder, split, side, i), make_array(array))
  write_nests(folder, nests)


def map_arrays(function: Callable[[Any], Any], nest: Any) -> Any:
  """Returns `nest`, an array or a dict, tuple or list of them, mapped."""
  if isinstance(nest, dict):
    return {name: function(array) for name, array in nest.items()}
  if isinstance(nest, (tuple, list)):
    arrays = map(function, nest)
    return [*arrays] if isinstance(nest, list) else tuple(arrays)
  return function(nest)


def make_array(values: Any) -> np.ndarray:
  """Returns an array that a file can hold; text of pandas becomes NumPy's.

  Raises:
    ValueError: it has objects that are no text, is a single value, or has ids
      that its floats would change.
  """
  array = mixed_columns.make_array(values)
  if array.dtype != object:
    if not array.ndim:
      raise ValueError(
        f'{str(values)[:40]} is a single value: expected an array of one value '
        'per example; of a list of numbers make an array'
      )
    return array
  strange = [v for v in array.flat if not isinstance(v, str)]
  if strange:
    raise ValueError(
      f'an array has {type(strange[0]).__name__} objects, such as '
      f'{str(strange[0])[:40]!r}: expected numbers, bool or text'
    )
  return array.astype(str)


def flatten(nest: Any) -> tuple[Any, list[Any]]:
  """Returns (names, what is in the nest); see nests.json.

  The names of a dict are sorted: two that differ only in order are the same.
  """
  if isinstance(nest, dict):
    names = sorted(nest)
    return names, [nest[name] for name in names]
  if isinstance(nest, (tuple, list)):
    return list(range(len(nest))), list(nest)
  return None, [nest]


def _describe(names: _Names) -> str:
  if names is None:
    return 'one array'
  is_dict = names and isinstance(names[0], str)
  return f'{list(names)}' if is_dict else f'{len(names)} arrays'


def load(folder: _Folder, split: str) -> tuple | None:
  """Returns (x, y), or (x, y, w), of a split, mapped into memory.

  None if it is missing.
  """
  if not os.path.exists(path_of(folder, split, 'x', 0)):
    return None
  with open(_nests_path(folder), encoding='utf-8') as file:
    nests = json.load(file)
  sides = 'xyw' if os.path.exists(path_of(folder, split, 'w', 0)) else 'xy'
  return tuple(
    _load_nest(folder, split, side, nests.get(side)) for side in sides
  )


def write_nests(folder: _Folder, nests: Mapping[str, _Names]) -> None:
  """Writes nests.json, {'x': names, 'y': names}."""
  with open(_nests_path(folder), 'w', encoding='utf-8') as file:
    json.dump(nests, file)


def path_of(folder: _Folder, split: str, side: str, number: int) -> str:
  """Returns the path of an array; `side` is 'x', 'y' or 'w'."""
  return os.path.join(folder, f'{split}_{side}_{number}.npy')


def _load_nest(folder: _Folder, split: str, side: str, names: _Names) -> Any:
  arrays = [
    np.load(path_of(folder, split, side, i), mmap_mode='r')
    for i in range(1 if names is None else len(names))
  ]
  if names is None:
    return arrays[0]
  if names and isinstance(names[0], int):
    return tuple(arrays)
  return dict(zip(names, arrays, strict=True))


def _nests_path(folder: _Folder) -> str:
  return os.path.join(folder, 'nests.json')
