"""Parquet files, read row group by row group.

  from distmnist.readers import parquet

  def load(split):
    return parquet.Reader(f'data/{split}-*.parquet', x=['age', 'income'],
                          y='bought')

A row group is decoded as a whole, and the groups of a window are kept: write
groups of a few thousand rows. Needs pyarrow: pip install 'distmnist[parquet]'.
"""

import collections
import os
import re
import threading

import numpy as np

from distmnist.readers import columns, paths, records

# Types of arrow that a graph has, and lists of them.
_TYPES = {'bool', 'text', 'halffloat', 'float', 'double'}
_TYPES |= {f'{sign}int{bits}' for sign in ('', 'u') for bits in (8, 16, 32, 64)}
_LIST = 'a list of '
# These become bytes, whatever their offsets are.
_BYTES = re.compile('(large_|fixed_size_)?(string|binary)')


class Reader:
  """Examples of Parquet files; see data/streamed.py.

  Attributes:
    num_examples: int.
    block_sizes: int64 array, the sizes of the row groups.
    window: int, how many blocks are mixed.
  """

  def __init__(self, pattern, x, y, window=8):
    """Finds the row groups.

    Args:
      pattern: str such as 'data/train-*.parquet', or a list of them.
      x, y: the columns; see columns.select. A column of lists of one length is
        [n, length], one of text is bytes.
      window: int, how many row groups are mixed, and kept in memory.

    Raises:
      ImportError: pyarrow is not installed.
      ValueError: there is no such file, one is not a Parquet file, a column is
        missing, or two files have different types in a column.
    """
    self._xy = x, y
    self._types = {}  # name: (type, the file that has it).
    self._paths = paths.find(pattern)
    self._files = {
      path: records.KnownFile(path, os.path.getsize(path))
      for path in self._paths
    }
    self._groups = [g for path in self._paths for g in self._list_groups(path)]
    sizes = [size for _, _, size in self._groups]
    self._firsts = np.cumsum([0, *sizes])
    self.block_sizes = np.array(sizes, np.int64)
    self.num_examples = int(self._firsts[-1])
    self.window = window
    self._kept = collections.OrderedDict()
    self._lock = threading.Lock()

  def read(self, indices):
    """Returns (x, y) of the examples with these numbers.

    Raises:
      OSError, ValueError: a file is gone or has changed, or has rows without a
        value or lists of another length.
    """
    owners = np.searchsorted(self._firsts, indices, 'right') - 1
    found = {}
    for owner in np.unique(owners).tolist():
      chosen = owners == owner
      rows = indices[chosen] - self._firsts[owner]
      for name, values in self._find_group(owner).items():
        if name not in found:
          shape = len(indices), *values.shape[1:]
          found[name] = np.empty(shape, values.dtype)
        self._check_shape(owner, name, values, found[name])
        found[name][chosen] = values[rows]
    return columns.select(self._xy, found)

  def identify(self):
    """Returns bytes that tell these examples from others."""
    return paths.identify(self._paths)

  def _list_groups(self, path):
    """Yields (path, number, rows) of the row groups of a file."""
    parquet = _import_parquet()
    try:
      file = parquet.ParquetFile(path)
    except ValueError as error:  # pyarrow.ArrowInvalid is one.
      raise ValueError(f'{path} is not a Parquet file') from error
    with file:
      columns.check(self._xy, file.schema_arrow.names, path)
      if file.metadata.num_rows:  # pandas gives no type to a column of nothing.
        self._check_types(path, file.schema_arrow)
      for number in range(file.num_row_groups):
        if size := file.metadata.row_group(number).num_rows:
          yield path, number, size

  def _check_types(self, path, schema):
    """Raises ValueError if a column has a type that no graph has.

    Or another one than in other files: NumPy would turn its values into those
    of the other type, 1.5 into 1.
    """
    for name in columns.names(self._xy):
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

  def _check_shape(self, owner, name, values, others):
    """Raises ValueError if a row group's lists have another length."""
    if values.shape[1:] != others.shape[1:]:
      path, number, _ = self._groups[owner]
      raise ValueError(
        f'{path}, row group {number}: {name} has lists of {values.shape[1]} '
        f'values, another one has lists of {others.shape[1]}: expected all of '
        'one length'
      )

  def _find_group(self, owner):
    """Returns {name: array [rows, ...]} of a row group."""
    with self._lock:
      if owner not in self._kept:
        while len(self._kept) > self.window:
          self._kept.popitem(last=False)
        self._kept[owner] = self._read_group(*self._groups[owner][:2])
      self._kept.move_to_end(owner)
      return self._kept[owner]

  def _read_group(self, path, number):
    with records.opened(path) as file:
      self._files[path].check(file)
    try:
      with _import_parquet().ParquetFile(path) as file:
        table = file.read_row_group(number, columns.names(self._xy))
    except FileNotFoundError:
      raise
    except (OSError, ValueError) as error:
      raise ValueError(
        f'{path}, row group {number}, is damaged: {str(error).splitlines()[0]}'
      ) from error
    return {
      name: _convert(table.column(name), f'{path}, row group {number}: {name}')
      for name in table.column_names
    }


def _import_parquet():
  """Returns pyarrow.parquet; raises ImportError that says what to do."""
  try:
    from pyarrow import parquet  # noqa: PLC0415  Only where it is needed.
  except ImportError as error:
    raise ImportError(
      "Parquet files need pyarrow: pip install 'distmnist[parquet]'"
    ) from error
  return parquet


def _describe_type(type_):
  """Returns what tells the values of an arrow type from others (str)."""
  if hasattr(type_, 'index_type'):  # A dictionary, as pandas' categories are.
    type_ = type_.value_type
  text = str(type_)
  if hasattr(type_, 'value_type'):
    return _LIST + _describe_type(type_.value_type)
  return 'text' if _BYTES.match(text) else text


def _convert(column, where):
  """Returns the array of a pyarrow.ChunkedArray."""
  if column.null_count:
    raise ValueError(f'{where} has {column.null_count} rows without a value')
  values = column.combine_chunks()
  if hasattr(values, 'dictionary_decode'):  # As pandas writes categories.
    values = values.dictionary_decode()
  if not hasattr(values, 'value_lengths'):
    return _make_array(values)
  lengths = np.unique(values.value_lengths().to_numpy(zero_copy_only=False))
  if len(lengths) > 1:
    raise ValueError(
      f'{where} has lists of {lengths[0]} to {lengths[-1]} values: expected '
      'all of one length'
    )
  flat = values.flatten()
  if flat.null_count:  # NumPy has no whole number for these.
    raise ValueError(f'{where} has lists in which a value is missing')
  return _make_array(flat).reshape(len(values), -1)


def _make_array(values):
  array = values.to_numpy(zero_copy_only=False)
  if array.dtype != object:
    return array
  texts = (v.encode() if isinstance(v, str) else v for v in array.tolist())
  return np.array([*texts, None], object)[:-1]
