"""CSV files with a header, each line read from where it lies.

from distmnist.readers import csv

def load(split):
  return csv.Reader(f'data/{split}-*.csv', x=['age', 'income'], y='bought')
"""

import csv
import functools
import io
import mmap

import numpy as np

from distmnist.readers import columns, paths, records

# From the first lines it is told what a column is made of.
_NUM_TOLD = 1000
_TYPES = np.int64, np.float32
# A file is searched for the ends of its lines in such parts.
_CHUNK_BYTES = 1 << 24


class Reader:
  """Examples of CSV files; see data/streamed.py.

  A column of whole numbers is int64, one of other numbers float32, any other
  one is text: bytes. A text must not go over several lines.

  Attributes:
    num_examples: int.
    block_sizes: int64 array: lines that lie beside each other.
    window: int, the blocks that are mixed.
  """

  def __init__(self, pattern, x, y, window=64):
    """Finds the places of all lines.

    Args:
      pattern: str such as 'data/train-*.csv', or a list of them.
      x, y: the columns; see columns.select.
      window: int, how many blocks of up to 256 lines are mixed.

    Raises:
      ValueError: no file is there, or a column is missing.
    """
    self._paths = paths.find(pattern)
    self._xy = x, y
    self._header = _read_header(self._paths[0])
    for path in self._paths:
      columns.check(self._xy, _read_header(path), path)
      if _read_header(path) != self._header:
        raise ValueError(
          f'{path} has other columns than {self._paths[0]}, or in another order'
        )
    self._records = records.Records(
      self._paths, [_find_places(path) for path in self._paths]
    )
    self.num_examples = self._records.num_records
    self.block_sizes = self._records.block_sizes
    self.window = window

  def read(self, indices):
    """Returns (x, y) of the examples of these numbers.

    Raises:
      OSError, ValueError: a file has gone, or has changed; a line is wrong.
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
    """{name: dtype} of the columns that are asked for."""
    rows = self._read_rows(np.arange(min(_NUM_TOLD, self.num_examples)))
    return {
      name: _tell_type([row[self._header.index(name)] for row in rows])
      for name in columns.names(self._xy)
    }

  def _read_rows(self, indices):
    """Returns the fields (list of str) of each line."""
    rows = []
    for number, line in zip(indices, self._records.read(indices), strict=True):
      [fields] = csv.reader(io.StringIO(line.decode('utf-8', 'replace')))
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
      return np.array([text.encode() for text in texts], object)
    try:
      return np.array(texts).astype(type_)
    except (ValueError, OverflowError):
      for number, text in zip(indices, texts, strict=True):
        if not _is_of_type([text], type_):
          raise ValueError(
            f'{self._locate(number)}: {name} is {text!r}: expected '
            f'{np.dtype(type_).name}, as in the first lines'
          ) from None
      raise

  def _locate(self, number):
    path, row = self._records.locate(number)
    return f'{path}:{row + 2}'  # After the header, from 1.


def _tell_type(texts):
  fitting = (type_ for type_ in _TYPES if _is_of_type(texts, type_))
  return next(fitting, object)


def _is_of_type(texts, type_):
  try:
    np.array(texts).astype(type_)
  except (ValueError, OverflowError):
    return False
  return True


def _read_header(path):
  with open(path, encoding='utf-8', newline='') as file:
    return next(csv.reader(file), [])


def _find_places(path):
  """Returns (offsets, lengths) of the lines after the first, but blank ones."""
  with (
    open(path, 'rb') as file,
    mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as text,
  ):
    ends = [np.zeros(0, np.int64)]
    for start in range(0, len(text), _CHUNK_BYTES):
      chunk = np.frombuffer(text[start : start + _CHUNK_BYTES], np.uint8)
      ends.append(np.flatnonzero(chunk == ord('\n')) + start)
    ends = np.concatenate(ends)
    if text[len(text) - 1] != ord('\n'):
      ends = np.append(ends, len(text))
    offsets, ends = ends[:-1] + 1, ends[1:]
    lengths = ends - offsets
    keep = lengths > 0
    for i in np.flatnonzero(lengths == 1).tolist():
      keep[i] = text[offsets[i]] != ord('\r')
  return offsets[keep], lengths[keep]
