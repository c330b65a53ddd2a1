"""TFRecord files, each record read from where it lies.

  from distmnist.readers import tfrecord

  def load(split):
    return tfrecord.Reader(f'data/{split}-*.tfrecord', parse)

  def parse(records):
    found = tf.io.parse_example(records, {...})
    return tf.io.decode_raw(found['image'], tf.uint8), found['label']

The places of the records are found once, by the lengths that stand before them.
Compressed files have no such places.
"""

import os
import struct

import numpy as np
import tensorflow.compat.v1 as tf

from distmnist.readers import graph_function, paths, records

# A record is its length, a checksum of that, the data, a checksum of these.
_HEADER = struct.Struct('<Q4x')
_FOOTER_BYTES = 4


class Reader:
  """Examples of TFRecord files; see data/streamed.py.

  Attributes:
    num_examples: int.
    block_sizes: int64 array: records that lie beside each other.
    window: int, the blocks that are mixed.
  """

  def __init__(self, pattern, parse, window=64):
    """Finds the places of all records.

    Args:
      pattern: str such as 'data/train-*.tfrecord', or a list of them.
      parse: callable(records) -> (x, y), built once in a graph: from strings
        [n] to nests of tensors [n, ...].
      window: int, how many blocks of up to 256 records are mixed.

    Raises:
      ValueError: no file is there, or one is no TFRecord file.
    """
    found = paths.find(pattern)
    self._paths = found
    self._records = records.Records(found, [_find_places(p) for p in found])
    self._parse = graph_function.GraphFunction(parse, tf.string, None)
    self.num_examples = self._records.num_records
    self.block_sizes = self._records.block_sizes
    self.window = window

  def read(self, indices):
    """Returns (x, y) of the examples of these numbers.

    Raises:
      OSError, ValueError: a file has gone, or has changed.
      tf.errors.OpError: `parse` fails.
    """
    return self._parse(self._records.read(indices))

  def identify(self):
    """Returns bytes that tell these examples from others."""
    return paths.identify(self._paths)


def _find_places(path):
  """Returns (offsets, lengths) of the data of the records of a file."""
  offsets, lengths = [], []
  size, offset = os.path.getsize(path), 0
  with open(path, 'rb') as file:
    # No buffer that a seek would throw away: only headers are read.
    number = file.fileno()
    while offset < size:
      header = os.pread(number, _HEADER.size, offset)
      end = offset + _HEADER.size + _FOOTER_BYTES
      if len(header) == _HEADER.size:
        [length] = _HEADER.unpack(header)
        end += length
      if len(header) < _HEADER.size or end > size:
        raise ValueError(_explain(path, header, offset))
      offsets.append(offset + _HEADER.size)
      lengths.append(length)
      offset = end
  return np.array(offsets, np.int64), np.array(lengths, np.int64)


def _explain(path, header, offset):
  """Returns why there is no whole record at a place of a file (str)."""
  if offset:
    return f'{path} is not whole: its record at byte {offset:,} is cut off'
  if header[:2] in (b'\x1f\x8b', b'\x78\x9c'):
    return f'{path} is compressed: expected TFRecord files that are not'
  return f'{path} is no TFRecord file'
