"""Layouts: the packed form of examples from Spark on their way to a worker.

A layout describes the packed form, in JSON types only:

  nests     {'x': names, 'y': names} as in data/array_folder.py; None for
            images, which are in the files of datasets/npy.py
  leaves    [{'name', 'dtype', 'shape', 'below'}], in order; dtype is a NumPy
            dtype or 'text'; values are less than `below`, unless it is None
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from distmnist.data import array_folder

TEXT = 'text'
Layout = dict[str, Any]
Leaf = dict[str, Any]


def make_of_images(image_shape: Sequence[int], num_classes: int) -> Layout:
  """Returns the layout for images [height, width, channels] and labels."""
  leaves = [
    _make_leaf('images', '|u1', image_shape),
    _make_leaf('labels', '<i4', (), num_classes),
  ]
  return {'nests': None, 'leaves': leaves}


def make(example: Any) -> Layout:
  """Returns the layout that fits the first example, (x, y).

  Raises:
    ValueError: it is not a pair, or a value is neither numbers nor text.
  """
  nests: dict[str, Any] = {}
  leaves: list[Leaf] = []
  for side, nest in zip('xy', _check_pair(example), strict=True):
    nests[side], values = _flatten(nest)
    for i, value in enumerate(values):
      name = f'{side}_{i}'
      if isinstance(value, str | bytes | bytearray):
        leaves.append(_make_leaf(name, TEXT, ()))
        continue
      array = _to_array(value)
      if array.dtype.kind not in 'biuf' or not array.size:
        raise ValueError(
          f'{name} is {value!r:.80}: expected numbers, an array of them, or a'
          ' text'
        )
      dtype = '<f4' if array.dtype.kind == 'f' else array.dtype.str
      leaves.append(_make_leaf(name, dtype, array.shape))
  return {'nests': nests, 'leaves': leaves}


def pack(example: Any, layout: Layout) -> list[bytes]:
  """Returns an example, (x, y), as a list of bytes.

  Raises:
    ValueError: it does not fit the layout.
  """
  values: list[Any] = []
  for side, nest in zip('xy', _check_pair(example), strict=True):
    wanted = layout['nests'] and layout['nests'][side]
    names, found = _flatten(nest)
    if names != wanted:
      raise ValueError(f'{side} has {names}, expected {wanted}')
    values += found
  return [
    _pack_leaf(value, leaf)
    for value, leaf in zip(values, layout['leaves'], strict=True)
  ]


def _pack_leaf(value: Any, leaf: Leaf) -> bytes:
  name, shape = leaf['name'], tuple(leaf['shape'])
  is_bytes = isinstance(value, bytes | bytearray | memoryview)
  if leaf['dtype'] == TEXT:
    if not is_bytes and not isinstance(value, str):
      raise ValueError(f'{name} is {value!r:.80}: expected a text')
    return value.encode() if isinstance(value, str) else bytes(value)
  dtype = np.dtype(leaf['dtype'])
  if is_bytes and dtype == np.uint8:
    array = np.frombuffer(value, np.uint8)
  else:
    array = _to_array(value)
  if array.dtype.kind not in 'biuf':
    raise ValueError(f'{name} is {value!r:.80}: expected numbers')
  # An image may be flat; a last axis of one channel is optional.
  is_flat = array.shape == (np.prod(shape),)
  if not is_flat and _without_ones(array.shape) != _without_ones(shape):
    raise ValueError(
      f'{name} has the shape {list(array.shape)}, expected {list(shape)}'
    )
  with np.errstate(all='ignore'):
    packed = array.astype(dtype)
  if dtype.kind != 'f' and not np.array_equal(packed, array):
    raise ValueError(f'{name} has values that are no {dtype.name}')
  below = leaf['below']
  if below is not None and not 0 <= packed < below:
    raise ValueError(f'{name} is {packed}, expected 0 to {below - 1}')
  return packed.tobytes()


def _make_leaf(
  name: str, dtype: str, shape: Sequence[int], below: int | None = None
) -> Leaf:
  return {'name': name, 'dtype': dtype, 'shape': [*shape], 'below': below}


def _check_pair(example: Any) -> Sequence[Any]:
  if not isinstance(example, (tuple, list)) or len(example) != 2:
    raise ValueError(f'an example is {example!r:.80}: expected (x, y)')
  return example


def _flatten(nest: Any) -> tuple[Any, list[Any]]:
  # A list is an array here, as in a DataFrame.
  return (
    (None, [nest]) if isinstance(nest, list) else array_folder.flatten(nest)
  )


def _to_array(value: Any) -> np.ndarray:
  # A pyspark.ml vector has toArray.
  return np.asarray(value.toArray() if hasattr(value, 'toArray') else value)


def _without_ones(shape: Sequence[int]) -> tuple[int, ...]:
  return tuple(size for size in shape if size != 1)
