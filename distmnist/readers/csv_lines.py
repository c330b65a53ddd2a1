"""The lines of a CSV file: where they are, and their fields."""

import codecs
import csv
import mmap
import os

import numpy as np

# Bytes that are no UTF-8 stay what they are, from the file to the graph.
ENCODING = 'utf-8', 'surrogateescape'
# A file is searched for the ends of its lines in parts of this size.
_CHUNK_BYTES = 1 << 24
_GZIP = b'\x1f\x8b'


def split(line, delimiter):
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
    return split(line, delimiter) if line else []
  except UnicodeDecodeError as error:
    raise ValueError(
      f'the first line of {path} is not in UTF-8: convert the file'
    ) from error
  except csv.Error as error:
    raise ValueError(f'{path}:1: {error}') from error


def find_places(path, num_before):
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


def find_number(path, offset):
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
