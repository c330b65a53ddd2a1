"""CSV files; each line is read from its place in the file.

from distmnist.readers import csv

def load(split):
  return csv.Reader(f'data/{split}-*.csv', x=['age', 'income'], y='bought')
"""

import codecs
import csv
import functools
import mmap
import os
import re

import numpy as np

from distmnist.readers import columns, paths, records

# How many first lines tell the type of a column.
_NUM_TOLD = 1000
_TYPES = np.int64, np.float32
_WHOLE_NUMBER = re.compile(r'\s*[+-]?\d+\s*')
_NAMED_TYPES = {'int64': np.int64, 'float32': np.float32, 'text': object}
# Bytes that are no UTF-8 stay what they are, from the file to the graph.
ENCODING = 'utf-8', 'surrogateescape'
# A file is searched for the ends of its lines in parts of this size.
_CHUNK_BYTES = 1 << 24
_GZIP = b'\x1f\x8b'


class Reader:
  """Examples of CSV files; see data/streamed.py.

  By default the first lines tell the types: a column of whole numbers is int64,
  one of other numbers float32, and any other is text, as bytes. A text must not
  span several lines.

  Attributes:
    num_examples: int.
    block_sizes: int64 array, the number of adjacent lines in each block.
    window: int, how many blocks are mixed.
  """

  def __init__(
    self, pattern, x, y, window=64, delimiter=',', names=None, missing=None
  ):
    """Finds the places of all lines.

    Args:
      pattern: str such as 'data/train-*.csv', or a list of them.
      x, y: the columns; see columns.select.
      window: int, how many blocks of up to 256 lines are mixed.
      delimiter: str, the character between two fields.
      names: list of str, the columns of files without a header; None if the
        first line has them.
      missing: number, what an empty field counts as in a column of numbers;
        with None, a column that has empty fields is text.

    Raises:
      ValueError: there is no such file, a column is missing, two files differ
        in their columns, or the delimiter is not one character.
      OSError: a file cannot be read.
    """
    if len(delimiter) != 1 or delimiter in '"\r\n':
      raise ValueError(
        f'delimiter={delimiter!r}: expected one character, such as ; or a tab'
      )
    self._paths = paths.find(pattern)
    self._xy = x, y
    if missing is not None and float(missing).is_integer():
      missing = int(missing)  # -1.0 also fits a column of whole numbers.
    self._missing = '' if missing is None else str(missing)
    self._given_types = {}
    self._delimiter, num_before = delimiter, int(names is None)
    # One without a byte has no header, and no line either.
    filled = [*filter(os.path.getsize, self._paths)] or self._paths
    self._header = names or read_header(filled[0], delimiter)
    for path in filled:
      header = names or read_header(path, delimiter)
      columns.check(self._xy, header, path)
      if header != self._header:
        raise ValueError(
          f'{path} has different columns from {filled[0]}, or in another order'
        )
    self._records = records.Records(
      self._paths,
      [find_lines(path, num_before) for path in self._paths],
    )
    self.num_examples = self._records.num_records
    self.block_sizes = self._records.block_sizes
    self.window = window

  def with_types(self, types):
    """Gives types that the first lines do not show, if all prices are whole.

    Args:
      types: {column: 'int64', 'float32' or 'text'}.

    Returns:
      This reader.

    Raises:
      ValueError: no such column is read, or a type is unknown.
    """
    names = columns.names(self._xy)
    for name, type_ in types.items():
      if name not in names or type_ not in _NAMED_TYPES:
        raise ValueError(
          f'{name!r}: {type_!r}: expected one of {", ".join(_NAMED_TYPES)} for '
          f'one of the columns {", ".join(names)}'
        )
    self._given_types = {name: _NAMED_TYPES[t] for name, t in types.items()}
    return self

  def read(self, indices):
    """Returns (x, y) of the examples with these numbers.

    Raises:
      OSError, ValueError: a file is gone or has changed, or a line is wrong.
    """
    rows = self._read_rows(indices)
    found = {
      name: self._convert(name, type_, rows, indices)
      for name, type_ in self._types.items()
    }
    return columns.select(self._xy, found)

  def identify(self):
    """Returns bytes that tell these examples from others."""
    return paths.identify(self._paths)

  @functools.cached_property
  def _types(self):
    """{name: dtype} of the requested columns."""
    rows = self._read_rows(np.arange(min(_NUM_TOLD, self.num_examples)))
    path = self._paths[0]
    told = {
      name: _tell_type(path, self._header, name, rows, self._missing)
      for name in columns.names(self._xy)
      if name not in self._given_types
    }
    return told | self._given_types

  def _read_rows(self, indices):
    """Returns the fields (list of str) of each line."""
    rows = []
    for number, line in zip(indices, self._records.read(indices), strict=True):
      try:
        fields = split_line(line, self._delimiter)
      except csv.Error as error:
        raise ValueError(f'{self._locate(number)}: {error}') from error
      if len(fields) != len(self._header):
        raise ValueError(
          f'{self._locate(number)} has {len(fields)} fields: expected '
          f'{len(self._header)}, each in one line'
        )
      rows.append(fields)
    return rows

  def _convert(self, name, type_, rows, indices):
    column = self._header.index(name)
    texts = [row[column] for row in rows]
    if type_ is object:
      return np.array([t.encode(*ENCODING) for t in texts], object)
    try:
      return _to_numbers(texts, type_, self._missing)
    except (ValueError, OverflowError):
      for number, text in zip(indices, texts, strict=True):
        if not _is_of_type([text], type_, self._missing):
          raise ValueError(
            f'{self._locate(number)}: {name} is {text!r}: expected '
            f'{np.dtype(type_).name}, as in the first lines or in with_types()'
          ) from None
      raise

  def _locate(self, number):
    path, _, offset = self._records.locate(number)
    return f'{path}:{find_line_number(path, offset)}'


def _tell_type(path, header, name, rows, missing):
  """Returns the dtype of the column `name` of these rows.

  Raises:
    ValueError: they are whole numbers that only float32, rounded, could hold.
  """
  texts = [row[header.index(name)] for row in rows]
  fitting = (type_ for type_ in _TYPES if _is_of_type(texts, type_, missing))
  found = next(fitting, object) if any(texts) else object
  if found is np.float32 and all(
    _WHOLE_NUMBER.fullmatch(text or missing) for text in texts
  ):
    raise ValueError(
      f'{path}: {name} has whole numbers that int64 cannot hold, such as '
      f"{max(texts, key=len)}: give its type by with_types(), 'text' or "
      "'float32'"
    )
  return found


def _is_of_type(texts, type_, missing):
  try:
    _to_numbers(texts, type_, missing)
  except (ValueError, OverflowError):
    return False
  return True


def _to_numbers(texts, type_, missing):
  if '_' in ''.join(texts):  # In each batch: one look at all.
    raise ValueError('to Python, 12_3 and 1_23 are one number')
  with np.errstate(over='ignore'):
    found = np.array([text or missing for text in texts]).astype(type_)
  if type_ is np.float32:
    for i in np.flatnonzero(np.isinf(found)).tolist():
      if 'inf' not in (texts[i] or missing).lower():
        raise OverflowError(f'{texts[i]} is infinite in float32')
  return found


def split_line(line, delimiter):
  """Returns the fields of a line.

  Args:
    line: bytes.
    delimiter: str, one character.

  Returns:
    list of str; text.encode(*ENCODING) gives the bytes of the line.

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


def read_header(path, delimiter):
  """Returns the names (list of str) of the columns; [] if the file is empty.

  Raises:
    ValueError: the first line is not a line of text.
  """
  with open(path, 'rb') as file:
    line = file.readline().removeprefix(codecs.BOM_UTF8)
  _check_is_text(path, line)
  try:
    line.decode()
    return split_line(line, delimiter) if line else []
  except UnicodeDecodeError as error:
    raise ValueError(
      f'the first line of {path} is not in UTF-8: convert the file'
    ) from error
  except csv.Error as error:
    raise ValueError(f'{path}:1: {error}') from error


def find_lines(path, num_before):
  """Returns (offsets, lengths) of the lines that are not blank.

  Args:
    path: str.
    num_before: int, how many lines at the beginning do not count, 0 or 1.

  Raises:
    ValueError: the file is compressed.
  """
  if not os.path.getsize(path):
    return np.zeros([2, 0], np.int64)
  with (
    open(path, 'rb') as file,
    mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as text,
  ):
    _check_is_text(path, text[: len(_GZIP)])
    ends = [np.zeros(0, np.int64)]
    for start in range(0, len(text), _CHUNK_BYTES):
      chunk = np.frombuffer(text[start : start + _CHUNK_BYTES], np.uint8)
      ends.append(np.flatnonzero(chunk == ord('\n')) + start)
    ends = np.concatenate(ends)
    if text[len(text) - 1] != ord('\n'):
      ends = np.append(ends, len(text))
    first = len(codecs.BOM_UTF8) * (text[:3] == codecs.BOM_UTF8)
    offsets = np.append(first, ends[:-1] + 1)[num_before:]
    ends = ends[num_before:]
    lengths = ends - offsets
    keep = lengths > 0
    for i in np.flatnonzero(lengths == 1).tolist():
      keep[i] = text[offsets[i]] != ord('\r')
  return offsets[keep], lengths[keep]


def find_line_number(path, offset):
  """Returns the number (int) of the line at `offset`, from 1, as editors do."""
  number = 1
  with open(path, 'rb') as file:
    while part := file.read(min(offset, _CHUNK_BYTES)):
      number += part.count(b'\n')
      offset -= len(part)
  return number


def _check_is_text(path, start):
  """Raises ValueError if a file that begins with `start` is compressed."""
  if start.startswith(_GZIP):
    raise ValueError(f'{path} is compressed: expected CSV files that are not')
