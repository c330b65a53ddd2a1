"""Examples from a user's own files, as a SavedModel takes them.

  .npy     [n, ...], for a model with one input
  .npz     an array [n, ...] for each input, under its name
  .jsonl   one example per line: {"input": value, ...}, or the value alone if
           the model has one input
  .csv     with a header: a column for each input of one value, name_0, name_1
           ... for one of several; or all columns, in their order, as the only
           input of a model. A first line of numbers is no header, unless they
           are 0, 1, 2 ..., as pandas numbers columns without a name.

Anything else in a file, such as labels, is ignored.
"""

from __future__ import annotations

import contextlib
import csv
import json
import os
import zipfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf

from distmnist.common import cli
from distmnist.data import split

# What a model takes, {name: TensorSpec [n, ...]}, and what a file has of it.
Specs = Mapping[str, tf.TensorSpec]
Arrays = dict[str, np.ndarray]

# Errors of a file with another content than its name says.
_BROKEN = (
  *(ValueError, EOFError, RecursionError),
  *(csv.Error, zipfile.BadZipFile, zlib.error),
)


def read(path: str, specs: Specs, missing: float | None = None) -> Arrays:
  """Returns what a file has for each input of a model, in the input's type.

  Args:
    path: of the file.
    specs: what the model takes.
    missing: the number that an empty field of a CSV file counts as, None for
      an error; an empty text is one.

  Raises:
    cli.RunError: the file cannot be read, or lacks what the model takes.
  """
  ending = os.path.splitext(path)[1].lower()
  if ending not in _READERS:
    raise cli.RunError(
      f'{path}: the name ends in {ending or "nothing"!r}: expected one of '
      f'{", ".join(_READERS)}'
    )
  try:
    arrays = _READERS[ending](path, specs)
    if ending == '.csv' and missing is not None:
      _fill(arrays, specs, missing)
    found = {n: convert(n, arrays[n], spec) for n, spec in specs.items()}
    _check_sizes({name: len(array) for name, array in found.items()})
  except OSError as error:
    raise cli.RunError(
      f'cannot read {path}: {error.strerror or error}'
    ) from error
  except _BROKEN as error:
    reason = (str(error) or type(error).__name__).splitlines()[0]
    raise cli.RunError(
      f'{path}: {reason}; the model takes {split.describe_specs(specs)}'
    ) from error
  return found


def _fill(arrays: Arrays, specs: Specs, missing: float) -> None:
  """Writes `missing` into the empty fields of numbers."""
  # -1.0 also fits a column of whole numbers.
  text = str(int(missing) if missing.is_integer() else missing)
  for name, texts in arrays.items():
    if specs[name].dtype != tf.string:
      texts[texts == ''] = text


def _check_sizes(sizes: Mapping[str, int]) -> None:
  if len({*sizes.values()}) > 1:
    said = ', '.join(f'{name} has {n:,}' for name, n in sizes.items())
    raise ValueError(f'the inputs have different numbers of examples: {said}')
  if 0 in sizes.values():
    raise ValueError('no example')


def _read_numpy(path: str, specs: Specs) -> Arrays:
  """Reads one array, or several with their names, whichever the file has."""
  with open(path, 'rb') as file:
    start = file.read(len(np.lib.format.MAGIC_PREFIX))
  if not start.startswith((b'PK', np.lib.format.MAGIC_PREFIX)):
    # NumPy would take it for a pickle, and advise to load that.
    raise ValueError('not a file of np.save or np.savez')
  found = np.load(path, allow_pickle=False)
  if not isinstance(found, np.ndarray):
    with found:
      return {name: _pick(found, name, 'array') for name in specs}
  if len(specs) > 1:
    raise ValueError(
      f'an array, but the model has {len(specs)} inputs: give an .npz'
    )
  return dict.fromkeys(specs, found)


def _read_jsonl(path: str, specs: Specs) -> Arrays:
  rows = {name: [] for name in specs}
  with open(path, encoding='utf-8-sig') as file:
    for number, line in enumerate(file, 1):
      if not line.strip():
        continue
      try:
        example = json.loads(line, parse_float=parse_float)
        if not isinstance(example, dict):
          if len(specs) > 1:
            raise ValueError('no object, but the model has several inputs')
          example = dict.fromkeys(specs, example)
        for name, spec in specs.items():
          value = np.asarray(_pick(example, name, 'value'))
          rows[name].append(convert(name, value[np.newaxis], spec))
      except ValueError as error:
        raise ValueError(f'line {number}: {error}') from error
  for name, values in rows.items():
    if not values:
      raise ValueError('no example')
    if len({value.shape for value in values}) > 1:
      raise ValueError(f'{name} does not have the same shape in all examples')
  return {name: np.concatenate(values) for name, values in rows.items()}


def _read_csv(path: str, specs: Specs) -> Arrays:
  """Reads the columns as text, dtype object, [n] or [n, number of columns]."""
  # A field may be as long as the file; 131,072 characters are Python's limit.
  csv.field_size_limit(max(csv.field_size_limit(), os.path.getsize(path)))
  with open(path, encoding='utf-8-sig', newline='') as file:
    lines = csv.reader(file)
    found = [(lines.line_num, row) for row in lines if row] or [(1, [])]
  header, *rows = [row for _, row in found]
  if _has_numbers_only(header) and header != [*map(str, range(len(header)))]:
    raise ValueError(
      f'the first line is {",".join(header)[:40]}: expected the names of the '
      'columns'
    )
  for number, row in found:
    if len(row) != len(header):
      raise ValueError(
        f'line {number} has {len(row)} fields, the header {len(header)}'
      )
  texts = np.array(rows, object).reshape(len(rows), len(header))
  arrays = {}
  for name, spec in specs.items():
    columns = texts[:, _find_columns(name, spec, header, len(specs))]
    arrays[name] = columns[:, 0] if spec.shape.rank == 1 else columns
  return arrays


def _has_numbers_only(header: Sequence[str]) -> bool:
  try:
    return bool([*map(float, header)])
  except ValueError:
    return False


def _find_columns(
  name: str, spec: tf.TensorSpec, header: Sequence[str], num_inputs: int
) -> list[int]:
  """Returns the indices of the columns of an input."""
  if spec.shape.rank not in (1, 2):
    raise ValueError(
      f'{name} has no place in columns: give an .npz or JSON lines'
    )
  wanted = [name]
  if spec.shape.rank == 2:
    size = spec.shape[1] or sum(c.startswith(f'{name}_') for c in header)
    wanted = [f'{name}_{i}' for i in range(size)]
  if {*wanted} <= {*header}:
    if twice := [column for column in wanted if header.count(column) > 1]:
      raise ValueError(f'several columns are {twice[0]!r}: expected one')
    return [header.index(column) for column in wanted]
  if num_inputs == 1 and len(header) == len(wanted):
    return [*range(len(header))]
  raise ValueError(
    f'the columns are {", ".join(header)}: expected {", ".join(wanted[:2])}'
    + (' and so on' if len(wanted) > 2 else '')
  )


_READERS = {
  '.npy': _read_numpy,
  '.npz': _read_numpy,
  '.jsonl': _read_jsonl,
  '.csv': _read_csv,
}


def _pick(found: Mapping[str, Any], name: str, what: str) -> Any:
  if name not in found:
    raise ValueError(f'no {what} {name!r}, but {", ".join(found) or "none"}')
  return found[name]


def convert(name: str, array: np.ndarray, spec: tf.TensorSpec) -> np.ndarray:
  """Returns an array [n, ...] in the type of its input, with no value changed.

  Floating-point numbers are rounded to the input's precision.

  Raises:
    ValueError: it has another shape, or values that the input cannot take.
  """
  if not spec.shape.is_compatible_with(array.shape):
    raise ValueError(f'{name} has the shape {list(array.shape)}')
  kind = array.dtype.kind
  if kind == 'O':  # Text, integers of any size, and what JSON calls null.
    for value in array.flat:
      if not isinstance(value, str | int):
        what = 'null' if value is None else 'an object'
        raise ValueError(f'{name} is or has {what}')
  if spec.dtype == tf.string:
    return _as_text(name, array)
  if kind == 'O':
    array = _parse(name, array, spec.dtype)
  elif kind not in 'biuf':
    raise ValueError(f'{name} is {array.dtype.name}, not a number')
  has_all = False
  with np.errstate(all='ignore'), contextlib.suppress(OverflowError):
    found = array.astype(spec.dtype.as_numpy_dtype)
    if spec.dtype.is_floating or spec.dtype.is_complex:
      has_all = np.array_equal(np.isinf(found), np.isinf(array))
    else:
      has_all = np.array_equal(found, array)
  if not has_all:
    raise ValueError(f'{name} has values that are no {spec.dtype.name}')
  return found


def _as_text(name: str, array: np.ndarray) -> np.ndarray:
  texts = array.astype(object)
  for text in texts.flat:
    if not isinstance(text, str | bytes):
      raise ValueError(f'{name} is {array.dtype.name}, not text')
    if isinstance(text, str):
      text.encode()  # Half a surrogate pair is no text.
  return texts


def _parse(name: str, texts: np.ndarray, dtype: tf.DType) -> np.ndarray:
  """Returns texts [n, ...], or integers, as numbers."""
  words: dict[str, Any] = {'true': 1, 'false': 0} if dtype == tf.bool else {}
  number: Callable[[Any], float] = int if dtype.is_integer else parse_float
  found = []
  for place, text in np.ndenumerate(texts):
    try:
      if text == '':
        raise ValueError(
          'no value: --missing=N says what it counts as (the number that the '
          'csv.Reader of the training had as missing=)'
        )
      if '_' in str(text):  # 12_3 and 1_23 are one number to Python.
        raise ValueError(f'{text!r} is no number')
      found.append(number(words.get(str(text).lower(), text)))
    except (ValueError, OverflowError) as error:
      raise ValueError(f'example {place[0]}: {name}: {error}') from error
  return np.array(found).reshape(texts.shape)


def parse_float(text: str | int) -> float:
  """Returns a number.

  Raises:
    ValueError: it is none, or so large that Python makes it infinite.
  """
  found = float(text)
  if abs(found) == np.inf and 'inf' not in str(text).lower():
    raise ValueError(f'{text} is too large')
  return found
