"""Parquet files, read once into an Arrow file, and from there by row.

  from distmnist.readers import parquet

  def load(split):
    return parquet.Reader(f'data/{split}-*.parquet', x=['age', 'income'],
                          y='bought')

Needs pyarrow: pip install 'distmnist[data]'.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from distmnist.data import example_weights
from distmnist.readers import arrow_file, columns, data_cache, paths

if TYPE_CHECKING:
  import pyarrow as pa

# Types of arrow that a graph has, and lists of them.
_TYPES = {'bool', 'text', 'halffloat', 'float', 'double'}
_TYPES |= {f'{sign}int{bits}' for sign in ('', 'u') for bits in (8, 16, 32, 64)}
_LIST = 'a list of '
# These become bytes, whatever their offsets are.
_BYTES = re.compile('(large_|fixed_size_)?(string|binary)')
# A row group is decoded in parts of about this size.
_PART_BYTES = 1 << 22
_FORMAT = 1  # Of what is kept in the cache.


class Reader:
  """Examples of Parquet files; see data/streamed.py.

  Attributes:
    num_examples: the rows of all files.
    block_sizes: int64, the sizes of the row groups.
    window: how many blocks are mixed.
  """

  def __init__(
    self,
    pattern: paths.Pattern,
    x: Any,
    y: Any,
    window: int = 8,
    w: str | None = None,
  ) -> None:
    """Finds the row groups; the rows are read when they are needed.

    Args:
      pattern: such as 'data/train-*.parquet', or several.
      x, y: the columns; see columns.select. A column of lists of one length is
        [n, length], one of text is bytes.
      window: how many row groups are mixed.
      w: the column of the examples' weights, none of them negative; None if all
        count the same.

    Raises:
      ImportError: pyarrow is not installed.
      ValueError: there is no such file, one is not a Parquet file, a column is
        missing, or two files have different types in a column.
    """
    self._xyw, self._w = (x, y) if w is None else (x, y, w), w
    # name: (type, the file that has it).
    self._types: dict[str, tuple[str, str]] = {}
    self._paths = paths.find(pattern)
    self._known = {
      path: paths.KnownFile(path, os.path.getsize(path)) for path in self._paths
    }
    self._groups = [g for path in self._paths for g in self._list_groups(path)]
    sizes = [size for _, _, size, _ in self._groups]
    self.block_sizes = np.array(sizes, np.int64)
    self.num_examples = sum(sizes)
    self.window = window

  def read(self, indices: np.ndarray) -> tuple[Any, ...]:
    """Returns (x, y) or (x, y, w) of the examples with these numbers, int64.

    Raises:
      OSError, ValueError: when first called: a file is gone or has changed, or
        has rows without a value or lists of another length.
      cli.RunError: the cache cannot be used.
    """
    return columns.select(self._xyw, self._rows.read(indices))

  def identify(self) -> bytes:
    """Returns bytes that tell these examples from others."""
    return paths.identify(self._paths)

  @functools.cached_property
  def _rows(self) -> arrow_file.Rows:
    versions = [paths.find_version(path) for path in self._paths]
    names = columns.names(self._xyw)
    file = data_cache.fetch(
      paths.describe(self._paths),
      ('parquet', _FORMAT, versions, self.block_sizes.tolist(), names, self._w),
      lambda file: arrow_file.write(file, self._list_batches()),
    )
    with file:
      return arrow_file.Rows(file, len(self._groups))

  def _list_groups(self, path: str) -> Iterator[tuple[str, int, int, int]]:
    """Yields (path, number, rows, bytes) of the row groups of a file."""
    parquet = arrow_file.load_pyarrow('parquet')
    try:
      file = parquet.ParquetFile(path)
    except ValueError as error:  # pyarrow.ArrowInvalid is one.
      raise ValueError(f'{path} is not a Parquet file') from error
    with file:
      columns.check(self._xyw, file.schema_arrow.names, path)
      if file.metadata.num_rows:  # pandas gives no type to a column of nothing.
        self._check_types(path, file.schema_arrow)
      for number in range(file.num_row_groups):
        group = file.metadata.row_group(number)
        if group.num_rows:
          yield path, number, group.num_rows, group.total_byte_size

  def _check_types(self, path: str, schema: pa.Schema) -> None:
    """Raises ValueError if a column has a type that no graph has.

    Or another one than in other files: 1.5 among whole numbers would be 1.
    """
    for name in columns.names(self._xyw):
      mine = _describe_type(schema.field(name).type)
      if mine.removeprefix(_LIST) not in _TYPES:
        raise ValueError(
          f'{path}: {name} is {mine}: expected numbers, bool, text or lists of '
          'these; convert it where the file is written'
        )
      first, first_path = self._types.setdefault(name, (mine, path))
      if mine != first:
        raise ValueError(
          f'{path}: {name} is {mine}, but {first} in {first_path}'
        )

  def _list_batches(self) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yields (number of the row group, its next rows).

    Raises:
      ValueError: names the row group that is damaged or has no array's rows.
    """
    pa = arrow_file.load_pyarrow()
    schema = None
    for owner, (path, number, size, num_bytes) in enumerate(self._groups):
      where = f'{path}, row group {number}'
      rows = max(1, min(size, size * _PART_BYTES // max(1, num_bytes)))
      for batch in self._read_group(path, number, rows):
        arrays = [
          _convert(array, f'{where}: {name}')
          for name, array in zip(batch.schema.names, batch.columns, strict=True)
        ]
        found = pa.record_batch(arrays, batch.schema.names)
        if self._w is not None:
          _check_weights(f'{where}: {self._w}', found.column(self._w))
        _check_lists(where, found.schema, schema or found.schema)
        schema = schema or found.schema
        yield owner, found

  def _read_group(
    self, path: str, number: int, rows: int
  ) -> Iterator[pa.RecordBatch]:
    """Yields the rows of a row group, up to `rows` at a time."""
    with paths.opened(path) as file:
      self._known[path].check(file)
    try:
      with (
        paths.naming(path),
        arrow_file.load_pyarrow('parquet').ParquetFile(path) as file,
      ):
        yield from file.iter_batches(rows, [number], columns.names(self._xyw))
    except (OSError, ValueError) as error:
      if getattr(error, 'errno', None):  # The disk's; a damaged file has none.
        raise
      raise ValueError(
        f'{path}, row group {number}, is damaged: {str(error).splitlines()[0]}'
      ) from error


def _describe_type(type_: pa.DataType) -> str:
  """Returns what tells the values of an arrow type from others."""
  if hasattr(type_, 'index_type'):  # A dictionary, as pandas' categories are.
    type_ = type_.value_type
  text = str(type_)
  if hasattr(type_, 'value_type'):
    return _LIST + _describe_type(type_.value_type)
  return 'text' if _BYTES.match(text) else text


def _convert(values: pa.Array, where: str) -> pa.Array:
  """Returns numbers as they are, text as bytes, lists of one length as such."""
  if values.null_count:
    raise ValueError(f'{where} has {values.null_count} rows without a value')
  if not hasattr(values, 'value_lengths'):
    return _unify(values)
  lengths = np.unique(values.value_lengths().to_numpy(zero_copy_only=False))
  if len(lengths) > 1:
    raise ValueError(
      f'{where} has lists of {lengths[0]} to {lengths[-1]} values: expected '
      'all of one length'
    )
  if not lengths[0]:
    raise ValueError(
      f'{where} has lists of 0 values: expected at least one value in each'
    )
  flat = values.flatten()
  if flat.null_count:  # NumPy has no whole number for these.
    raise ValueError(f'{where} has lists in which a value is missing')
  fixed = arrow_file.load_pyarrow().FixedSizeListArray
  return fixed.from_arrays(_unify(flat), int(lengths[0]))


def _unify(values: pa.Array) -> pa.Array:
  """Returns text as bytes, of several ways to hold it; others as they are."""
  if hasattr(values, 'dictionary_decode'):  # As pandas writes categories.
    values = values.dictionary_decode()
  is_text = _describe_type(values.type) == 'text'
  binary = arrow_file.load_pyarrow().large_binary()
  return values.cast(binary) if is_text else values


def _check_weights(where: str, values: pa.Array) -> None:
  """Raises ValueError if some of these numbers are no weights."""
  array = values.to_numpy(zero_copy_only=False)
  if array.dtype.kind in 'iuf':
    example_weights.convert(where, array)


def _check_lists(where: str, mine: pa.Schema, first: pa.Schema) -> None:
  """Raises ValueError if lists have another length than in the first rows."""
  for field, other in zip(mine, first, strict=True):
    if field.type != other.type:
      raise ValueError(
        f'{where}: {field.name} has lists of {field.type.list_size} values, '
        f'another one has lists of {other.type.list_size}: expected all of one '
        'length'
      )
