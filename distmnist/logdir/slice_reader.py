"""Reads a checkpoint of which no process may hold a whole table.

A variable that was saved in slices, as shards and tables are, is read by these
very slices. TensorFlow tells no program which these are: they are in the index,
a table in the format of LevelDB whose values are BundleEntryProtos.
"""

from typing import NamedTuple

import tensorflow.compat.v1 as tf

from distmnist import tf_internals
from distmnist.logdir import checkpoint_files, checkpoint_reads, slice_copy

_FOOTER_BYTES = 48


class Slice(NamedTuple):
  """A part of a variable as it is stored; of one stored whole, all of it.

  Attributes:
    first: int, its first row.
    size: int, the number of its rows.
    place: str, TensorFlow's shape_and_slices, '' for a variable stored whole.
  """

  first: int
  size: int
  place: str


def read(path, do):
  """Returns do(SliceReader) of the checkpoint at `path`, maybe a store's.

  Raises:
    checkpoint_reads.DamageError: it is not as it was written.
    cli.PassingError: it cannot be read.
  """

  def read_once():
    local = checkpoint_files.localize(path)
    with slice_copy.opened() as session:
      return do(SliceReader(local, session))

  return checkpoint_reads.trying(path, read_once)


class SliceReader:
  """Reads variables a slice at a time.

  Attributes:
    shapes: {name: list of int}. dtypes: {name: tf.DType}.
  """

  def __init__(self, path, session):
    """
    Args:
      path: str, on this machine.
      session: tf.Session, to whose graph ops are added.
    """
    self._path, self._session = path, session
    self._reader = checkpoint_reads.open_reader(path)
    self.shapes = self._reader.get_variable_to_shape_map()
    self.dtypes = self._reader.get_variable_to_dtype_map()
    self._slices = _find_slices(f'{path}.index')
    self._reads = {}

  def find_slices(self, name):
    """Returns the list of Slice of a variable, by their first rows."""
    shape = self.shapes[name]
    if found := self._slices.get(name):
      return sorted(_describe(shape, extents) for extents in found)
    return [Slice(0, shape[0] if shape else 1, '')]

  def read(self, name, part):
    """Returns the array of one Slice of a variable."""
    if not part.place:
      return self._reader.get_tensor(name)
    dtype = self.dtypes[name]
    if dtype not in self._reads:
      fed = tf.placeholder(tf.string, [1]), tf.placeholder(tf.string, [1])
      [value] = tf.raw_ops.RestoreV2(
        prefix=self._path,
        tensor_names=fed[0],
        shape_and_slices=fed[1],
        dtypes=[dtype],
      )
      self._reads[dtype] = value, *fed
    value, *fed = self._reads[dtype]
    given = [name], [part.place]
    return self._session.run(value, dict(zip(fed, given, strict=True)))


def _describe(shape, extents):
  """Returns the Slice of a tensor_slice.proto's list of extents."""
  ranges = [
    (e.start, e.length if e.HasField('length') else size)
    for e, size in zip(extents, shape, strict=True)
  ]
  text = ':'.join(f'{start},{length}' for start, length in ranges)
  return Slice(*ranges[0], f'{" ".join(map(str, shape))} {text}')


def _find_slices(index):
  """Returns {name: list of the extents of its slices} of an index file."""
  with open(index, 'rb') as file:
    data = file.read()
  found = {}
  footer = data[-_FOOTER_BYTES:]
  *_, offset, size = _read_varints(footer, 0, 4)[0]
  for _, handle in _iterate_block(data, offset, size):
    for key, value in _iterate_block(data, *_read_varints(handle, 0, 2)[0]):
      if not key:
        continue  # The header.
      entry = tf_internals.BundleEntry.FromString(value)
      if entry.slices:
        found[key.decode()] = [part.extent for part in entry.slices]
  return found


def _iterate_block(data, offset, size):
  """Yields the (key, value) of a block, whose keys share their beginnings."""
  block = data[offset : offset + size]
  num_restarts = int.from_bytes(block[-4:], 'little')
  place, end, key = 0, size - 4 * (num_restarts + 1), b''
  while place < end:
    (shared, rest, length), place = _read_varints(block, place, 3)
    key = key[:shared] + block[place : place + rest]
    place += rest
    yield key, block[place : place + length]
    place += length


def _read_varints(data, place, count):
  """Returns (`count` numbers, where they end in `data`)."""
  found = []
  for _ in range(count):
    number = shift = 0
    while True:
      byte = data[place]
      place += 1
      number |= (byte & 0x7F) << shift
      shift += 7
      if byte < 0x80:
        break
    found.append(number)
  return found, place
