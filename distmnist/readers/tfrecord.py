"""TFRecord files; each record is read from its place in the file.

  from distmnist.readers import tfrecord

  def load(split):
    return tfrecord.Reader(f'data/{split}-*.tfrecord', parse)

  def parse(records):
    found = tf.io.parse_example(records, {...})
    return tf.io.decode_raw(found['image'], tf.uint8), found['label']

The places of the records are found once, by the lengths that precede them.
Compressed files have no such places. A record must have the checksum that was
written with it when it is read for the first time.
"""

import contextlib
import os
import struct

import numpy as np
import tensorflow.compat.v1 as tf

from distmnist.cluster import errors
from distmnist.readers import graph_function, paths, records

# A record is its length, a checksum of that, the data, and their checksum.
_HEADER = struct.Struct('<Q4x')
_FOOTER_BYTES = 4


class Reader:
  """Examples of TFRecord files; see data/streamed.py.

  Attributes:
    num_examples: int.
    block_sizes: int64 array, the number of adjacent records in each block.
    window: int, how many blocks are mixed.
  """

  def __init__(self, pattern, parse, window=64):
    """Finds the places of all records.

    Args:
      pattern: str such as 'data/train-*.tfrecord', or a list of them.
      parse: callable(records) -> (x, y), called once to build a graph: from
        strings [n] to nests of tensors [n, ...].
      window: int, how many blocks of up to 256 records are mixed.

    Raises:
      ValueError: there is no such file, or one is not a TFRecord file.
    """
    found = paths.find(pattern)
    self._paths = found
    self._records = records.Records(found, [_find_places(p) for p in found])
    self._parse = graph_function.GraphFunction(parse, tf.string, None)
    self.num_examples = self._records.num_records
    self._is_checked = np.zeros(self.num_examples, bool)
    self.block_sizes = self._records.block_sizes
    self.window = window

  def read(self, indices):
    """Returns (x, y) of the examples with these numbers.

    Raises:
      OSError, ValueError: a file is gone or has changed, or a record is
        damaged or cannot be parsed.
      tf.errors.OpError: `parse` fails, but not on any one record.
    """
    packed = self._records.read(indices)
    self._check(indices, packed)
    texts = [record[_HEADER.size : -_FOOTER_BYTES] for record in packed]
    try:
      return self._parse(np.array(texts, object))
    except tf.errors.OpError:
      for number, text in zip(indices, texts, strict=True):
        self._check_parsed(number, text)
      raise

  def _check_parsed(self, number, text):
    """Raises ValueError if a record on its own cannot be parsed."""
    try:
      self._parse(np.array([text], object))
    except tf.errors.OpError as error:
      path, row, _ = self._records.locate(number)
      raise ValueError(
        f'{path}: its record {row:,}, counted from 0, cannot be parsed: '
        f'{errors.explain(error)}'
      ) from error

  def _check(self, indices, packed):
    """Compares the checksums of the records that are read for the first time.

    In each epoch it would cost a tenth of the images/s of a small net.
    """
    new = np.flatnonzero(~self._is_checked[indices])
    num_whole = _count_whole(packed[i] for i in new) if len(new) else 0
    if num_whole < len(new):
      path, number, _ = self._records.locate(indices[new[num_whole]])
      raise ValueError(
        f'{path} is damaged: its record {number:,}, counted from 0, does not '
        'have the checksum that was written with it'
      )
    self._is_checked[indices[new]] = True

  def identify(self):
    """Returns bytes that tell these examples from others."""
    return paths.identify(self._paths)


def _find_places(path):
  """Returns (offsets, lengths) of the records of a file, with checksums."""
  offsets, lengths = [], []
  size, offset = os.path.getsize(path), 0
  with open(path, 'rb') as file:
    # Without a buffer, which each seek would discard: only headers are read.
    number = file.fileno()
    while offset < size:
      header = os.pread(number, _HEADER.size, offset)
      end = offset + _HEADER.size + _FOOTER_BYTES
      if len(header) == _HEADER.size:
        [length] = _HEADER.unpack(header)
        end += length
      if len(header) < _HEADER.size or end > size:
        raise ValueError(_explain(path, header, offset))
      offsets.append(offset)
      lengths.append(end - offset)
      offset = end
  return np.array(offsets, np.int64), np.array(lengths, np.int64)


def _count_whole(packed):
  """Returns how many records (int) come before one that is damaged.

  TensorFlow checks them: CRC-32C by Python would take longer than all the rest.

  Args:
    packed: iterable of bytes, the records with their lengths and checksums.
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


def _explain(path, header, offset):
  """Returns why there is no whole record at a place of a file (str)."""
  if offset:
    return f'{path} is not whole: its record at byte {offset:,} is cut off'
  if header[:2] in (b'\x1f\x8b', b'\x78\x9c'):
    return f'{path} is compressed: expected TFRecord files that are not'
  return f'{path} is not a TFRecord file'
