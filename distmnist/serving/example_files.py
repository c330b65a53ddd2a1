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

import csv
import json
import os
import zipfile
import zlib

import numpy as np

from distmnist.common import cli
from distmnist.serving import saved_model

_ENDINGS = '.npy', '.npz', '.jsonl', '.csv'
# Errors of a file with another content than its name says.
_BROKEN = ValueError, EOFError, RecursionError, csv.Error
_BROKEN += zipfile.BadZipFile, zlib.error


def read(path, specs):
  """Returns {name of an input: array [n, ...]} of a file's examples.

  Args:
    path: str.
    specs: {name: tf.TensorSpec [n, ...]}, the model's inputs.

  Raises:
    cli.RunError: the file cannot be read, or lacks what the model takes.
  """
  ending = os.path.splitext(path)[1].lower()
  readers = dict(
    zip(_ENDINGS, (_read_npy, _read_npz, _read_jsonl, _read_csv), strict=True)
  )
  if ending not in readers:
    raise cli.RunError(
      f'{path}: the name ends in {ending or "nothing"!r}: expected one of '
      f'{", ".join(_ENDINGS)}'
    )
  try:
    arrays = readers[ending](path, specs)
    found = {
      name: convert(name, arrays[name], spec) for name, spec in specs.items()
    }
    _check_numbers(found)
  except OSError as error:
    raise cli.RunError(
      f'cannot read {path}: {error.strerror or error}'
    ) from error
  except _BROKEN as error:
    reason = (str(error) or type(error).__name__).splitlines()[0]
    raise cli.RunError(
      f'{path}: {reason}; the model takes '
      f'{saved_model.describe_signature(specs)}'
    ) from error
  return found


def _read_npy(path, specs):
  if len(specs) > 1:
    raise ValueError(
      f'an array, but the model has {len(specs)} inputs: give an .npz'
    )
  found = np.load(path, allow_pickle=False)
  if not isinstance(found, np.ndarray):
    found.close()
    raise ValueError('an .npz file by its content')
  return dict.fromkeys(specs, found)


def _read_npz(path, specs):
  found = np.load(path, allow_pickle=False)
  if isinstance(found, np.ndarray):
    raise ValueError('an .npy file by its content')
  with found:
    return {name: _pick(found, name, 'array') for name in specs}


def _read_jsonl(path, specs):
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
  return {name: _join(name, values) for name, values in rows.items()}


def _read_csv(path, specs):
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
  found = {}
  for name, spec in specs.items():
    columns = texts[:, _find_columns(name, spec, header, len(specs))]
    found[name] = columns[:, 0] if spec.shape.rank == 1 else columns
  return found


def _has_numbers_only(header):
  try:
    return bool([*map(float, header)])
  except ValueError:
    return False


def _find_columns(name, spec, header, num_inputs):
  """Returns the indices (list of int) of the columns of an input."""
  if spec.shape.rank not in (1, 2):
    raise ValueError(
      f'{name} has no place in columns: give an .npz or JSON lines'
    )
  size, wanted = 1, [name]
  if spec.shape.rank == 2:
    size = spec.shape[1] or sum(c.startswith(f'{name}_') for c in header)
    wanted = [f'{name}_{i}' for i in range(size)]
  if {*wanted} <= {*header}:
    if twice := [column for column in wanted if header.count(column) > 1]:
      raise ValueError(f'several columns are {twice[0]!r}: expected one')
    return [header.index(column) for column in wanted]
  if num_inputs == 1 and len(header) == size:
    return list(range(size))
  raise ValueError(
    f'the columns are {", ".join(header)}: expected {", ".join(wanted[:2])}'
    + (' and so on' if size > 2 else '')
  )


def _pick(found, name, what):
  if name not in found:
    raise ValueError(f'no {what} {name!r}, but {", ".join(found) or "none"}')
  return found[name]


def _join(name, values):
  if not values:
    raise ValueError('no example')
  if len({value.shape for value in values}) > 1:
    raise ValueError(f'{name} does not have the same shape in all examples')
  return np.concatenate(values)


def _check_numbers(arrays):
  sizes = {name: len(array) for name, array in arrays.items()}
  if len({*sizes.values()}) > 1:
    said = ', '.join(f'{name} has {n:,}' for name, n in sizes.items())
    raise ValueError(f'the inputs have different numbers of examples: {said}')
  if 0 in sizes.values():
    raise ValueError('no example')


def convert(name, array, spec):
  """Returns an array [n, ...] in the type of its input, with no value changed.

  Floating-point numbers are rounded to the input's precision.

  Raises:
    ValueError: it has another shape, or values that the input cannot take.
  """
  dtype = spec.dtype
  if not spec.shape.is_compatible_with(array.shape):
    raise ValueError(f'{name} has the shape {list(array.shape)}')
  kind = array.dtype.kind
  if kind == 'O':
    _check_objects(name, array)
  if dtype.name == 'string':
    is_text = kind in 'US' or (
      kind == 'O' and all(isinstance(x, str) for x in array.flat)
    )
    if not is_text:
      raise ValueError(f'{name} is {array.dtype.name}, not text')
    texts = array.astype(object)
    for text in texts.flat:
      if isinstance(text, str):
        text.encode()  # Half a surrogate pair is no text.
    return texts
  wanted = dtype.as_numpy_dtype
  if kind == 'O':
    array, kind = _parse(name, array, dtype), None
  elif kind not in 'biuf':
    raise ValueError(f'{name} is {array.dtype.name}, not a number')
  try:
    with np.errstate(all='ignore'):
      found = array.astype(wanted)
  except OverflowError as error:
    raise ValueError(f'{name} has values that are no {dtype.name}') from error
  if dtype.is_floating or dtype.is_complex:
    is_same = np.array_equal(np.isinf(found), np.isinf(array))
  else:
    is_same = np.array_equal(found, array)
  if not is_same:
    raise ValueError(f'{name} has values that are no {dtype.name}')
  return found


def _check_objects(name, array):
  """Raises ValueError unless all are text, or integers of any size."""
  for value in array.flat:
    if not isinstance(value, str | int):
      what = 'null' if value is None else 'an object'
      raise ValueError(f'{name} is or has {what}')


def _parse(name, texts, dtype):
  """Returns the texts as numbers."""
  words = {'true': 1, 'false': 0} if dtype.name == 'bool' else {}
  number = int if dtype.is_integer else parse_float
  found = []
  for place, text in np.ndenumerate(texts):
    try:
      if '_' in str(text):  # 12_3 and 1_23 are one number to Python.
        raise ValueError(f'{text!r} is no number')
      found.append(number(words.get(str(text).lower(), text)))
    except (ValueError, OverflowError) as error:
      raise ValueError(f'example {place[0]}: {name}: {error}') from error
  return np.array(found).reshape(texts.shape)


def parse_float(text):
  """Returns a float.

  Raises:
    ValueError: it is no number, or so large that Python makes it infinite.
  """
  found = float(text)
  if abs(found) == np.inf and 'inf' not in str(text).lower():
    raise ValueError(f'{text} is too large')
  return found
