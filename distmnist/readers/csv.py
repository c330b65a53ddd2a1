"""CSV files, read once into an Arrow file, and from there by row.

from distmnist.readers import csv

def load(split):
  return csv.Reader(f'data/{split}-*.csv.gz', x=['age', 'income'], y='bought')

Needs pyarrow: pip install 'distmnist[data]'.
"""

from __future__ import annotations

import codecs
import contextlib
import csv
import functools
import io
import itertools
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from distmnist.data import example_weights
from distmnist.readers import arrow_file, columns, data_cache, paths

if TYPE_CHECKING:
  import pyarrow as pa

# How many first lines tell the type of a column.
_NUM_TOLD = 1000
# Adjacent lines, which stay together when the blocks are shuffled.
_BLOCK_SIZE = 256
_TYPES = np.int64, np.float32
_WHOLE_NUMBER = re.compile(r'\s*[+-]?\d+\s*')
_NAMED_TYPES = {'int64': np.int64, 'float32': np.float32, 'text': object}
# Bytes that are no UTF-8 stay what they are, from the file to the graph.
ENCODING = 'utf-8', 'surrogateescape'
# A file is read in parts of this size, each of whole lines.
_PART_BYTES = 1 << 22
_COMPRESSED = b'\x1f\x8b', b'\x28\xb5\x2f\xfd'  # How gzip and zstd begin.
_FORMAT = 1  # Of what is kept in the cache.


class Reader:
  """Examples of CSV files; see data/streamed.py.

  By default the first lines tell the types: a column of whole numbers is int64,
  one of other numbers float32, and any other is text, as bytes. A text must not
  span several lines.

  Attributes:
    window: how many blocks are mixed.
  """

  def __init__(
    self,
    pattern: paths.Pattern,
    x: Any,
    y: Any,
    window: int = 64,
    delimiter: str = ',',
    names: Sequence[str] | None = None,
    missing: float | None = None,
    w: str | None = None,
  ) -> None:
    """Checks the files' headers; the lines are read when they are needed.

    Args:
      pattern: such as 'data/train-*.csv', or several; files whose names end in
        .gz, .zst or .bz2 are unpacked.
      x, y: the columns; see columns.select.
      window: how many blocks of up to 256 lines are mixed.
      delimiter: the character between two fields.
      names: the columns of files without a header; None if the first line has
        them.
      missing: what an empty field counts as in a column of numbers; with None,
        a column that has empty fields is text.
      w: the column of the examples' weights, in which no field may be empty or
        negative; None if all count the same.

    Raises:
      ImportError: pyarrow is not installed.
      ValueError: there is no such file, a column is missing, two files differ
        in their columns, or the delimiter is not one character.
      OSError: a file cannot be read.
    """
    if len(delimiter) != 1 or delimiter in '"\r\n':
      raise ValueError(
        f'delimiter={delimiter!r}: expected one character, such as ; or a tab'
      )
    self._paths = paths.find(pattern)
    self._xyw, self._w = (x, y) if w is None else (x, y, w), w
    if missing is not None and float(missing).is_integer():
      missing = int(missing)  # -1.0 also fits a column of whole numbers.
    self._missing = '' if missing is None else str(missing)
    self._given_types: dict[str, type] = {}
    self._delimiter, self._has_header = delimiter, names is None
    firsts = {path: _read_first_line(path) for path in self._paths}
    # One without a byte has no header, and no line either.
    filled = [path for path in self._paths if firsts[path]] or self._paths[:1]
    headers = {
      path: [*names] if names else read_header(path, firsts[path], delimiter)
      for path in filled
    }
    self._header = headers[filled[0]]
    for path, header in headers.items():
      columns.check(self._xyw, header, path)
      if header != self._header:
        raise ValueError(
          f'{path} has different columns from {filled[0]}, or in another order'
        )
    self.window = window

  def with_types(self, types: Mapping[str, str]) -> Reader:
    """Gives types that the first lines do not show, if all prices are whole.

    Args:
      types: {column: 'int64', 'float32' or 'text'}.

    Returns:
      This reader.

    Raises:
      ValueError: no such column is read, or a type is unknown.
    """
    names = columns.names(self._xyw)
    for name, type_ in types.items():
      if name not in names or type_ not in _NAMED_TYPES:
        raise ValueError(
          f'{name!r}: {type_!r}: expected one of {", ".join(_NAMED_TYPES)} for '
          f'one of the columns {", ".join(names)}'
        )
    self._given_types = {name: _NAMED_TYPES[t] for name, t in types.items()}
    return self

  @property
  def num_examples(self) -> int:
    return self._rows.num_rows

  @property
  def block_sizes(self) -> np.ndarray:
    """The number of adjacent lines in each block, int64."""
    cut = [
      min(_BLOCK_SIZE, size - start)
      for size in self._rows.part_sizes.tolist()
      for start in range(0, size, _BLOCK_SIZE)
    ]
    return np.array(cut, np.int64)

  def read(self, indices: np.ndarray) -> tuple[Any, ...]:
    """Returns (x, y) or (x, y, w) of the examples with these numbers, int64.

    Raises:
      OSError, ValueError: when first called: a file is gone, or a line is
        wrong.
      cli.RunError: the cache cannot be used.
    """
    return columns.select(self._xyw, self._rows.read(indices))

  def identify(self) -> bytes:
    """Returns bytes that tell these examples from others."""
    return paths.identify(self._paths)

  @functools.cached_property
  def _rows(self) -> arrow_file.Rows:
    versions = [paths.find_version(path) for path in self._paths]
    types = {name: np.dtype(t).name for name, t in self._types.items()}
    settings = self._delimiter, self._header, self._has_header, self._missing
    settings += (self._w,)
    file = data_cache.fetch(
      paths.describe(self._paths),
      ('csv', _FORMAT, versions, types, settings),
      lambda file: arrow_file.write(file, self._list_batches()),
    )
    with file:
      return arrow_file.Rows(file, len(self._paths))

  @functools.cached_property
  def _types(self) -> dict[str, type]:
    """The types of the requested columns."""
    lines = itertools.chain.from_iterable(
      self._split_lines(path, first, part)
      for path in self._paths
      for first, part in self._list_parts(path)
    )
    rows = [fields for _, fields in itertools.islice(lines, _NUM_TOLD)]
    path = self._paths[0]
    told = {
      name: _tell_type(
        path, self._header, name, rows, self._missing, name == self._w
      )
      for name in columns.names(self._xyw)
      if name not in self._given_types
    }
    return told | self._given_types

  def _list_batches(self) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yields (number of the file, its next rows)."""
    for number, path in enumerate(self._paths):
      known = paths.KnownFile(path, os.path.getsize(path))
      for first, part in self._list_parts(path):
        batch = self._parse(part) or self._parse_by_line(path, first, part)
        if batch.num_rows:
          yield number, batch
      with paths.opened(path) as file:
        known.check(file)

  def _list_parts(self, path: str) -> Iterator[tuple[int, bytes]]:
    """Yields (number of the first line, whole lines) without the header."""
    for first, part in _list_parts(path, _PART_BYTES):
      if first == 1 and self._has_header:
        first, part = 2, part[part.find(b'\n') + 1 or len(part) :]
      yield first, part

  def _parse(self, part: bytes) -> pa.RecordBatch | None:
    """Returns the rows of whole lines, or None: Python is to parse them.

    Arrow is some ten times as fast, but says no line's number, lets a text span
    several lines, and takes other ways to write a number.
    """
    pa, arrow_csv = arrow_file.load_pyarrow(), arrow_file.load_pyarrow('csv')
    kinds = {np.int64: pa.int64(), np.float32: pa.float64()}
    used = {str(self._header.index(name)): name for name in self._types}
    # To Arrow, 0x10 is a whole number.
    if np.int64 in self._types.values() and (b'0x' in part or b'0X' in part):
      return None
    try:
      table = arrow_csv.read_csv(
        pa.BufferReader(part),
        arrow_csv.ReadOptions(
          column_names=[str(i) for i in range(len(self._header))],
          block_size=len(part) + 1,
        ),
        arrow_csv.ParseOptions(delimiter=self._delimiter),
        arrow_csv.ConvertOptions(
          column_types={
            key: kinds.get(self._types[name], pa.large_binary())
            for key, name in used.items()
          },
          include_columns=list(used),
          null_values=[''],
          strings_can_be_null=False,
        ),
      )
      if table.num_rows != _count_lines(part, self._delimiter):
        return None
      arrays = [
        self._finish(table.column(key).combine_chunks(), name)
        for key, name in used.items()
      ]
    except (ValueError, csv.Error):  # pa.ArrowInvalid is a ValueError.
      return None
    return pa.record_batch(arrays, [*self._types])

  def _finish(self, values: pa.Array, name: str) -> pa.Array:
    """Fills the missing values; rounds to float32.

    Raises:
      ValueError: there is no value for them, a number is too large, or is no
        weight.
    """
    pa, type_ = arrow_file.load_pyarrow(), self._types[name]
    if values.null_count:
      parse = int if type_ is np.int64 else float
      values = values.fill_null(parse(self._missing_of(name)))
    if type_ is np.float32:
      with np.errstate(over='ignore'):
        found = values.to_numpy().astype(np.float32)
      if np.isinf(found).any():  # Was it written so?
        raise ValueError('infinite')
      values = pa.array(found)
    if name == self._w and type_ is not object:
      example_weights.convert(name, values.to_numpy())
    return values

  def _missing_of(self, name: str) -> str:
    """Returns what an empty field of a column counts as; '' if as itself."""
    return '' if name == self._w else self._missing

  def _parse_by_line(
    self, path: str, first: int, part: bytes
  ) -> pa.RecordBatch:
    """Returns the rows of whole lines; `first` is the number of the first.

    Raises:
      ValueError: names the line that is wrong.
    """
    pa = arrow_file.load_pyarrow()
    lines = [*self._split_lines(path, first, part)]
    arrays = [
      self._convert(path, name, type_, lines)
      for name, type_ in self._types.items()
    ]
    return pa.record_batch(arrays, [*self._types])

  def _split_lines(
    self, path: str, first: int, part: bytes
  ) -> Iterator[tuple[int, list[str]]]:
    """Yields (number, fields) of each line that is not blank.

    Raises:
      ValueError: a line has other fields than the header.
    """
    for number, line in enumerate(io.BytesIO(part), first):
      line = line.removesuffix(b'\n')
      if line in (b'', b'\r'):
        continue
      try:
        fields = split_line(line, self._delimiter)
      except csv.Error as error:
        raise ValueError(f'{path}:{number}: {error}') from error
      if len(fields) != len(self._header):
        raise ValueError(
          f'{path}:{number} has {len(fields)} fields: expected '
          f'{len(self._header)}, each in one line'
        )
      yield number, fields

  def _convert(
    self,
    path: str,
    name: str,
    type_: type,
    lines: Sequence[tuple[int, list[str]]],
  ) -> pa.Array:
    pa = arrow_file.load_pyarrow()
    column = self._header.index(name)
    texts = [fields[column] for _, fields in lines]
    if type_ is object:
      return pa.array([t.encode(*ENCODING) for t in texts], pa.large_binary())
    missing = self._missing_of(name)
    try:
      found = _to_numbers(texts, type_, missing)
    except (ValueError, OverflowError):
      for (number, _), text in zip(lines, texts, strict=True):
        if not _is_of_type([text], type_, missing):
          raise ValueError(
            f'{path}:{number}: {name} is {text!r}: expected '
            f'{np.dtype(type_).name}, as in the first lines or in with_types()'
          ) from None
      raise
    if name == self._w:
      for i in np.flatnonzero(example_weights.find_wrong(found))[:1].tolist():
        raise ValueError(
          f'{path}:{lines[i][0]}: the weight {name} is {texts[i]!r}: expected '
          'a finite number, 0 or more'
        )
    return pa.array(found)


def _tell_type(
  path: str,
  header: Sequence[str],
  name: str,
  rows: Sequence[Sequence[str]],
  missing: str,
  is_weight: bool,
) -> type:
  """Returns the type of the column `name` of these rows.

  A weight is a number; its empty fields, which are wrong, tell nothing.

  Raises:
    ValueError: they are whole numbers that only float32, rounded, could hold.
  """
  texts = [row[header.index(name)] for row in rows]
  if is_weight:
    texts = [text for text in texts if text] or ['1.0']
  fitting = (type_ for type_ in _TYPES if _is_of_type(texts, type_, missing))
  other = np.float32 if is_weight else object
  found = next(fitting, other) if any(texts) else other
  if found is np.float32 and all(
    _WHOLE_NUMBER.fullmatch(text or missing) for text in texts
  ):
    raise ValueError(
      f'{path}: {name} has whole numbers that int64 cannot hold, such as '
      f"{max(texts, key=len)}: give its type by with_types(), 'text' or "
      "'float32'"
    )
  return found


def _is_of_type(texts: list[str], type_: type, missing: str) -> bool:
  try:
    _to_numbers(texts, type_, missing)
  except (ValueError, OverflowError):
    return False
  return True


def _to_numbers(texts: list[str], type_: type, missing: str) -> np.ndarray:
  if '_' in ''.join(texts):
    raise ValueError('to Python, 12_3 and 1_23 are one number')
  with np.errstate(over='ignore'):
    found = np.array([text or missing for text in texts]).astype(type_)
  if type_ is np.float32:
    for i in np.flatnonzero(np.isinf(found)).tolist():
      if 'inf' not in (texts[i] or missing).lower():
        raise OverflowError(f'{texts[i]} is infinite in float32')
  return found


def split_line(line: bytes, delimiter: str) -> list[str]:
  """Returns the fields of a line; field.encode(*ENCODING) gives its bytes.

  Raises:
    csv.Error: it has no whole fields.
  """
  text = line.decode(*ENCODING)
  if len(text) > csv.field_size_limit():
    csv.field_size_limit(len(text))
  # One that does not end here would read on.
  reader = csv.reader([text, ''], delimiter=delimiter)
  fields = next(reader)
  if reader.line_num > 1:
    raise csv.Error('a quoted text does not end in its line')
  return fields


def _count_lines(part: bytes, delimiter: str) -> int:
  """Returns how many rows whole lines have if each has one; -1 if not.

  Raises:
    csv.Error: a quoted text does not end in the last line.
  """
  if part.count(b'\r') != part.count(b'\r\n'):  # Arrow ends a line there.
    return -1
  lines = part.count(b'\n') + (part[-1:] not in (b'\n', b''))
  if b'\n\n' in part or b'\n\r' in part or part[:1] in (b'\r', b'\n'):
    lines -= sum(line in (b'\n', b'\r\n', b'\r') for line in io.BytesIO(part))
  split_line(part.rstrip(b'\r\n').rpartition(b'\n')[2], delimiter)
  return lines


def _read_first_line(path: str) -> bytes:
  """Returns the first line of a file, b'' if it is empty.

  Raises:
    ValueError: it is compressed, and its name does not say so.
  """
  _, part = next(_list_parts(path, 1 << 16), (1, b''))
  if part.startswith(_COMPRESSED):
    raise ValueError(
      f'{path} is compressed: expected a name that ends in .gz or .zst'
    )
  return part.partition(b'\n')[0]


def read_header(path: str, line: bytes, delimiter: str) -> list[str]:
  """Returns the names of the columns in a first line; [] if it is empty.

  Raises:
    ValueError: it is not a line of text.
  """
  try:
    line.decode()
    return split_line(line, delimiter) if line else []
  except UnicodeDecodeError as error:
    raise ValueError(
      f'the first line of {path} is not in UTF-8: convert the file'
    ) from error
  except csv.Error as error:
    raise ValueError(f'{path}:1: {error}') from error


def _list_parts(path: str, num_bytes: int) -> Iterator[tuple[int, bytes]]:
  """Yields (number of the first line, from 1, whole lines) of a file.

  Args:
    path: a file, unpacked if its name says that it is compressed.
    num_bytes: how many are read at a time.
  """
  rest, first, num_read = b'', 1, 0
  with _unpacked(path) as stream:
    while part := stream.read(num_bytes):
      if not num_read:  # Excel's mark.
        part = part.removeprefix(codecs.BOM_UTF8)
      num_read += len(part)
      end = part.rfind(b'\n') + 1
      if end:
        whole = rest + part[:end]
        yield first, whole
        first += whole.count(b'\n')
        rest = part[end:]
      else:
        rest += part
  if rest:
    yield first, rest


@contextlib.contextmanager
def _unpacked(path: str) -> Iterator[Any]:
  """Yields a stream of a file's bytes, unpacked as its name says.

  Raises:
    OSError: it cannot be read.
    ValueError: it cannot be unpacked.
  """
  try:
    with (
      paths.naming(path),
      arrow_file.load_pyarrow().input_stream(path) as stream,
    ):
      yield stream
  except OSError as error:
    if error.errno:
      raise
    raise ValueError(f'{path} cannot be unpacked: {error}') from error
