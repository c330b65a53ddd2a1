"""TFRecord files; each record is read from its place in the file.

  from distmnist.readers import tfrecord

  def load(split):
    return tfrecord.Reader(f'data/{split}-*.tfrecord', parse)

  def parse(records):
    found = tf.io.parse_example(records, {...})
    return tf.io.decode_raw(found['image'], tf.uint8), found['label']

The places of the records are found once, by the lengths that precede them.
Files in gzip have no such places: all of a reader are unpacked once, into one
file of --data_cache, which stays open as long as there is the reader. A record
must have the checksum that was written with it when it is read for the
first time.
"""

from __future__ import annotations

import contextlib
import gzip
import os
import struct
import weakref
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, BinaryIO

import numpy as np
import tensorflow.compat.v1 as tf

from distmnist.cluster import errors
from distmnist.readers import data_cache, graph_function, paths

# A record is its length, a checksum of that, the data, and their checksum.
_HEADER = struct.Struct('<Q4x')
_FOOTER_BYTES = 4
# Adjacent records, which a disk reads in one go.
_BLOCK_SIZE = 256
_FORMAT = 1  # Of what is kept in the cache.
_END = '<i8'


class Reader:
  """Examples of TFRecord files; see data/streamed.py.

  Attributes:
    num_examples: the records of all files.
    block_sizes: int64, the number of adjacent records in each block.
    window: how many blocks are mixed.
  """

  def __init__(
    self,
    pattern: paths.Pattern,
    parse: Callable[[tf.Tensor], tuple],
    window: int = 64,
  ) -> None:
    """Finds the places of all records.

    Args:
      pattern: such as 'data/train-*.tfrecord', or several.
      parse: makes (x, y) or (x, y, w), nests of tensors [n, ...], of strings
        [n]; called once to build a graph.
      window: how many blocks of up to 256 records are mixed.

    Raises:
      ValueError: there is no such file, or one is not a TFRecord file.
      cli.RunError: the cache cannot be used.
    """
    self._paths = paths.find(pattern)
    self._files = self._find_files()
    self._parse = graph_function.GraphFunction(parse, tf.string, None)
    sizes = [len(file.offsets) for file in self._files]
    self._firsts = np.cumsum([0, *sizes])
    self.num_examples = int(self._firsts[-1])
    self._is_checked = np.zeros(self.num_examples, bool)
    self.block_sizes = np.array(
      [
        min(_BLOCK_SIZE, size - start)
        for size in sizes
        for start in range(0, size, _BLOCK_SIZE)
      ],
      np.int64,
    )
    self.window = window

  def _find_files(self) -> list[_File]:
    """Finds the records of each file; unpacks those that are in gzip."""
    plain = {path: _find_plain(path) for path in self._paths}
    found = {path: file for path, file in plain.items() if file}
    packed = [path for path in plain if path not in found]
    if packed:
      unpacked = _open_unpacked(packed)
      weakref.finalize(self, unpacked.close)
      ends = _read_ends(unpacked.fileno(), len(packed))
      for path, start, end in zip(packed, [0, *ends], ends, strict=False):
        places = _find_places(path, unpacked.fileno(), start, end)
        found[path] = _File(path, *places, unpacked.fileno())
    return [found[path] for path in self._paths]

  def read(self, indices: np.ndarray) -> tuple[Any, ...]:
    """Returns (x, y) of the examples with these numbers, int64.

    Raises:
      OSError, ValueError: a file is gone or has changed, or a record is
        damaged or cannot be parsed.
      tf.errors.OpError: `parse` fails, but not on any one record.
    """
    packed = np.empty(len(indices), object)
    owners = np.searchsorted(self._firsts, indices, 'right') - 1
    for owner in np.unique(owners).tolist():
      chosen = np.flatnonzero(owners == owner)
      rows = indices[chosen] - self._firsts[owner]
      for i, record in zip(chosen, self._files[owner].read(rows), strict=True):
        packed[i] = record
    self._check(indices, packed)
    texts = [record[_HEADER.size : -_FOOTER_BYTES] for record in packed]
    try:
      return self._parse(np.array(texts, object))
    except tf.errors.OpError:
      for number, text in zip(indices, texts, strict=True):
        self._check_parsed(number, text)
      raise

  def identify(self) -> bytes:
    """Returns bytes that tell these examples from others."""
    return paths.identify(self._paths)

  def _check_parsed(self, number: int | np.integer, text: bytes) -> None:
    """Raises ValueError if a record on its own cannot be parsed."""
    try:
      self._parse(np.array([text], object))
    except tf.errors.OpError as error:
      raise ValueError(
        f'{self._locate(number)}, counted from 0, cannot be parsed: '
        f'{errors.explain(error)}'
      ) from error

  def _check(self, indices: np.ndarray, packed: np.ndarray) -> None:
    """Compares the checksums of the records that are read for the first time.

    In each epoch it would cost a tenth of the images/s of a small net.
    """
    new = np.flatnonzero(~self._is_checked[indices])
    num_whole = _count_whole(packed[i] for i in new) if len(new) else 0
    if num_whole < len(new):
      damaged = int(indices[new[num_whole]])
      raise ValueError(
        f'{self._locate(damaged, " is damaged")}, counted from '
        '0, does not have the checksum that was written with it'
      )
    self._is_checked[indices[new]] = True

  def _locate(self, number: int | np.integer, what: str = '') -> str:
    owner = int(np.searchsorted(self._firsts, number, 'right')) - 1
    row = number - self._firsts[owner]
    return f'{self._paths[owner]}{what}: its record {row:,}'


class _File:
  """The records of a file, by their numbers.

  Attributes:
    offsets: int64, the place of each record in bytes.
  """

  def __init__(
    self,
    path: str,
    offsets: np.ndarray,
    lengths: np.ndarray,
    unpacked: int | None = None,
  ) -> None:
    """
    Args:
      path: the user's file, which may grow.
      offsets, lengths: int64, the places of the records; see _find_places.
      unpacked: the descriptor of the file that has them, if not `path`.
    """
    self.offsets, self._lengths = offsets, lengths
    self._path, self._unpacked = path, unpacked
    end = int((offsets + lengths).max(initial=0))
    self._known = paths.KnownFile(path, end if unpacked is None else 0)

  def read(self, rows: np.ndarray) -> Iterator[bytes]:
    """Yields records, with their lengths and checksums.

    Raises:
      OSError: the file is gone.
      ValueError: it is not what it was.
    """
    offsets, lengths = self.offsets[rows], self._lengths[rows]
    with self._opened() as file:
      for offset, length in zip(
        offsets.tolist(), lengths.tolist(), strict=True
      ):
        record = os.pread(file, length, offset)
        if len(record) != length:
          raise self._known.explain()
        yield record

  @contextlib.contextmanager
  def _opened(self) -> Iterator[int]:
    """Yields the descriptor of the file, or of what it is unpacked to."""
    if self._unpacked is not None:
      yield self._unpacked
      return
    with paths.opened(self._path) as file:
      self._known.check(file)
      yield file


def _find_plain(path: str) -> _File | None:
  """Finds the records of a file; returns None if it is in gzip.

  Raises:
    ValueError: it is neither.
  """
  with paths.opened(path) as file:
    try:
      places = _find_places(path, file, 0, os.fstat(file).st_size)
    except ValueError:
      # A record of some length may begin so, too.
      if os.pread(file, 2, 0) == b'\x1f\x8b':
        return None
      raise
  return _File(path, *places)


def _open_unpacked(packed: Sequence[str]) -> BinaryIO:
  """Opens a file of the cache: what these hold, and after it where each ends.

  Raises:
    ValueError: one cannot be unpacked, or has changed meanwhile.
    cli.RunError: the cache cannot be used.
  """
  known = [paths.KnownFile(path, os.path.getsize(path)) for path in packed]
  versions = [paths.find_version(path) for path in packed]

  def unpack(unpacked: BinaryIO) -> None:
    ends = []
    for path, known_file in zip(packed, known, strict=True):
      for part in _unpack(path):
        unpacked.write(part)
      ends.append(unpacked.tell())
      with paths.opened(path) as file:
        known_file.check(file)
    unpacked.write(np.array(ends, _END).tobytes())

  what = 'unpacked', _FORMAT, versions
  return data_cache.fetch(paths.describe(packed), what, unpack)


def _unpack(path: str) -> Iterator[bytes]:
  try:
    with paths.naming(path), gzip.open(path) as file:
      while part := file.read(1 << 20):
        yield part
  except (gzip.BadGzipFile, EOFError, zlib.error) as error:
    raise ValueError(f'{path} cannot be unpacked: {error}') from error


def _read_ends(file: int, num_files: int) -> list[int]:
  """Returns where each of the files ends that are unpacked into an open one."""
  num_bytes = num_files * np.dtype(_END).itemsize
  read = os.pread(file, num_bytes, os.fstat(file).st_size - num_bytes)
  return np.frombuffer(read, _END).tolist()


def _find_places(
  path: str, file: int, start: int, end: int
) -> tuple[np.ndarray, np.ndarray]:
  """Returns (offsets, lengths) of the records of a file, with checksums.

  Args:
    path: the user's file, for people.
    file: the descriptor of a file that has its records.
    start, end: where they begin and end in it, in bytes.

  Raises:
    ValueError: names `path`: it is not a TFRecord file, or not a whole one.
  """
  offsets, lengths = [], []
  offset = start
  while offset < end:
    header = os.pread(file, _HEADER.size, offset)
    next_one = offset + _HEADER.size + _FOOTER_BYTES
    if len(header) == _HEADER.size:
      [length] = _HEADER.unpack(header)
      next_one += length
    if len(header) < _HEADER.size or next_one > end:
      raise ValueError(
        f'{path} is not whole: its record at byte {offset - start:,} is cut off'
        if offset > start
        else f'{path} is not a TFRecord file'
      )
    offsets.append(offset)
    lengths.append(next_one - offset)
    offset = next_one
  return np.array(offsets, np.int64), np.array(lengths, np.int64)


def _count_whole(packed: Iterable[bytes]) -> int:
  """Returns how many records come before one that is damaged.

  TensorFlow checks them: CRC-32C by Python would take longer than all the rest.

  Args:
    packed: the records with their lengths and checksums.
  """
  num_whole = 0
  with open(os.memfd_create('records'), 'wb') as file:
    file.writelines(packed)
    file.flush()
    path = f'/proc/self/fd/{file.fileno()}'
    with contextlib.suppress(tf.errors.DataLossError):
      for _ in tf.python_io.tf_record_iterator(path):
        num_whole += 1
  return num_whole
