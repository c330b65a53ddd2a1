"""Reads checkpoints a slice at a time, and judges what cannot be read.

A checkpoint is files and an index. It may be in a store, from which its files
are copied; it may be partial (common/partial_names.py), and is then read
together with its base, a slice of this with the touched rows of that. So no
more than a slice of a variable that was saved in slices, as shards and tables
are, is in memory.

All that reads checkpoints goes through this module, and there is one judge,
`trying`. A checkpoint is damaged if a checksum, a truncation or an absence says
so. Any other failure (EIO, ESTALE, a right that is missing for a while) says
nothing about the checkpoint, which may be whole: it is read again for half a
minute, and then the task ends, and leaves all checkpoints where they are.
"""

from __future__ import annotations

import contextlib
import errno
import glob
import logging
import os
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np
import tensorflow.compat.v1 as tf

from distmnist import tf_internals
from distmnist.cluster import errors
from distmnist.common import cli, partial_names
from distmnist.storage import copies, paths, retries, scratch, stores, urls

_log = logging.getLogger(__name__)
_Found = TypeVar('_Found')

_DAMAGE = (
  *(tf.errors.DataLossError, tf.errors.OutOfRangeError),
  tf.errors.NotFoundError,
)
# What broken bytes raise in Python: too few of them is an IndexError.
_BROKEN = IndexError, ValueError, TypeError, KeyError, NotImplementedError
_OF_THE_SYSTEM = {os.strerror(number) for number in errno.errorcode}
_ABSENT = os.strerror(errno.ENOENT)
# At the end of an index, a table in the format of LevelDB.
_FOOTER_BYTES = 48


class DamageError(cli.RunError):
  """A checkpoint is not as it was written.

  Attributes:
    reason: without the checkpoint's path.
    is_gone: whether it, or its base, is no longer what it was opened as: whose
      it is may have dropped it.
  """

  def __init__(self, path: str, reason: str, is_gone: bool = False) -> None:
    super().__init__(f'checkpoint {path} cannot be read: {reason}')
    self.reason, self.is_gone = reason, is_gone


class Slice(NamedTuple):
  """A part of a variable; of one stored whole, all of it.

  Attributes:
    first: its first row.
    size: the number of its rows.
    place: TensorFlow's shape_and_slices, '' for all of the variable.
  """

  first: int
  size: int
  place: str


class Reader:
  """The variables of a checkpoint, each whole or a slice at a time.

  It is a context manager, and what it reads may be asked for until its end.
  Each read is tried again while its failure may pass.

  Attributes:
    shapes, dtypes: by name, those of whole variables.
    base: the path of its base; None if it is whole.
  """

  def __init__(self, path: str) -> None:
    """Opens a checkpoint, here or in a store.

    Raises:
      DamageError: it is not as it was written.
      cli.PassingError: it cannot be read.
    """
    self._slices = _SliceOps()
    self._own = _Files(path, self._slices)
    found = self._own.shapes
    self.shapes: dict[str, list[int]] = {
      n: found[n] for n in found if partial_names.is_plain(n)
    }
    self.dtypes: dict[str, tf.DType] = {
      n: self._own.dtypes[n] for n in self.shapes
    }
    self._ranges = partial_names.find_ranges(found)
    self.base: str | None = None
    if base := partial_names.find_base(found):
      self.base = os.path.join(os.path.dirname(path), base)
      self._base = self._open_base(base, self.base)
      for name in self._ranges:
        self._check_ranges(name)
        self.shapes[name] = self._base.shapes[name]
        self.dtypes[name] = self._base.dtypes[name]

  def __enter__(self) -> Reader:
    return self

  def __exit__(self, *_: Any) -> None:
    self._slices.close()

  def _open_base(self, name: str, path: str) -> _Files:
    expected = self._own.read(partial_names.name_base(name)).decode()
    if not trying(path, lambda: is_there(path)):
      raise self._blame(path, 'is not there')
    try:
      base = _Files(path, self._slices)
    except DamageError as error:
      raise self._blame(path, 'is not whole', error) from error
    if base.hash != expected:
      raise self._blame(path, 'was written anew')
    return base

  def _blame(
    self, base: str, what: str, error: DamageError | None = None
  ) -> DamageError:
    name = os.path.basename(self._own.path)
    why = f': {error.reason}' if error else ''
    return DamageError(
      self._own.path,
      f'{base} {what}, and {name} has only the rows touched since then{why}',
      is_gone=error is None or error.is_gone,
    )

  def _check_ranges(self, name: str) -> None:
    """Checks that the ranges of a table's rows leave none out."""
    [size, *_] = self._base.shapes.get(name, [0])
    begins, ends = zip(*self._ranges[name], strict=True)
    if begins != (0, *ends[:-1]) or ends[-1] != size:
      raise DamageError(self._own.path, f'it lacks rows of {name}')

  def find_slices(self, name: str) -> list[Slice]:
    """Returns the slices in which a variable is stored, by their first rows."""
    files = self._base if name in self._ranges else self._own
    return files.find_slices(name)

  def read(self, name: str, part: Slice | None = None) -> np.ndarray:
    """Returns the array of a variable, or of a part of it.

    Args:
      part: any rows of it; None for all of the variable.

    Raises:
      DamageError, cli.PassingError: as by `Reader`.
    """
    if name not in self._ranges:
      return self._own.read(name, part.place if part else '')
    if part is None:
      part = Slice(0, self.shapes[name][0], '')
    try:
      value = self._base.read(name, part.place)
    except DamageError as error:
      raise self._blame(self._base.path, 'is not whole', error) from error
    for begin, end in self._ranges[name]:
      if begin < part.first + part.size and part.first < end:
        touched = partial_names.name_touched(name, begin, end)
        rows, values = map(self._own.read, touched)
        rows -= part.first
        here = (rows >= 0) & (rows < part.size)
        value[rows[here]] = values[here]
    return value

  def read_rows(self, name: str, first: int, size: int) -> np.ndarray:
    """Returns `size` rows of a variable, from row `first`.

    Of a large variable that is stored in one piece, as in a SavedModel, only
    these rows are read, and so without its checksum, which is that of all.
    """
    if name not in self._ranges and self._own.is_large_piece(name):
      return self._own.read_bytes(name, first, size)
    place = partial_names.name_place(self.shapes[name], first, size)
    return self.read(name, Slice(first, size, place))


class _Files:
  """The files of one checkpoint, with the names that they have in it.

  Attributes:
    shapes, dtypes: see Reader.
    hash: of its index; see partial_names.
  """

  def __init__(self, path: str, slice_ops: _SliceOps) -> None:
    self.path, self._slice_ops = path, slice_ops
    self._reader: tf.train.CheckpointReader | None = None
    self._local = path
    self._try(lambda _: None)

  def _open(self) -> tf.train.CheckpointReader:
    self._local = _fetch(self.path)
    reader = open_reader(self._local)
    with open(f'{self._local}.index', 'rb') as file:
      index = file.read()
    self.hash = partial_names.compute_hash(index)
    self._entries = _find_entries(index)
    self.shapes = reader.get_variable_to_shape_map()
    self.dtypes = reader.get_variable_to_dtype_map()
    self._reader = reader
    return reader

  def _try(self, read: Callable[[tf.train.CheckpointReader], _Found]) -> _Found:
    def read_once() -> _Found:
      reader = self._open() if self._reader is None else self._reader
      try:
        return read(reader)
      except Exception:
        self._reader = None  # Its files may be stale.
        raise

    return trying(self.path, read_once)

  def find_slices(self, name: str) -> list[Slice]:
    shape = self.shapes[name]
    if slices := self._entries[name].slices:
      return sorted(_describe(shape, each.extent) for each in slices)
    return [Slice(0, shape[0] if shape else 1, '')]

  def is_large_piece(self, name: str) -> bool:
    """Whether a variable is larger than a slice, and not stored in slices."""
    entry = self._entries[name]
    return entry.size > partial_names.SLICE_BYTES and not entry.slices

  def read_bytes(self, name: str, first: int, size: int) -> np.ndarray:
    """Returns rows of a variable that is stored in one piece, unchecked."""
    entry, shape = self._entries[name], self.shapes[name]
    row_bytes = entry.size // shape[0]

    def read(_: tf.train.CheckpointReader) -> np.ndarray:
      start = f'{self._local}.data-{entry.shard_id:05d}-of-'
      [path] = glob.glob(f'{glob.escape(start)}*') or [f'{start}*']
      with open(path, 'rb') as file:
        file.seek(entry.offset + first * row_bytes)
        found = file.read(size * row_bytes)
      if len(found) < size * row_bytes:
        raise ValueError(f'{path} is too short')
      flat = np.frombuffer(found, self.dtypes[name].as_numpy_dtype)
      return flat.reshape([size, *shape[1:]])

    return self._try(read)

  def read(self, name: str, place: str = '') -> Any:
    if not place:
      return self._try(lambda reader: reader.get_tensor(name))
    return self._try(
      lambda _: self._slice_ops.run(self._local, name, place, self.dtypes[name])
    )


class _SliceOps:
  """Reads slices by ops of a session on the CPU: the reader has none."""

  def __init__(self) -> None:
    self._session: tf.Session | None = None
    self._ops: dict[tf.DType, tuple[tf.Tensor, ...]] = {}

  def run(
    self, path: str, name: str, place: str, dtype: tf.DType
  ) -> np.ndarray:
    session = self._session
    if session is None:
      config = tf.ConfigProto(device_count={'GPU': 0})
      session = self._session = tf.Session(graph=tf.Graph(), config=config)
    if dtype not in self._ops:
      self._ops[dtype] = self._build(session.graph, dtype)
    value, *fed = self._ops[dtype]
    given = path, [name], [place]
    return session.run(value, dict(zip(fed, given, strict=True)))

  def _build(self, graph: tf.Graph, dtype: tf.DType) -> tuple[tf.Tensor, ...]:
    """Returns (value, placeholders of path, name and place)."""
    with graph.as_default(), tf.device('/cpu:0'):
      path = tf.placeholder(tf.string, [])
      name, place = (tf.placeholder(tf.string, [1]) for _ in range(2))
      [value] = tf.raw_ops.RestoreV2(
        prefix=path, tensor_names=name, shape_and_slices=place, dtypes=[dtype]
      )
    return value, path, name, place

  def close(self) -> None:
    if self._session is not None:
      self._session.close()


def is_there(path: str) -> bool:
  """Whether there is a checkpoint at `path`, whole or not."""
  return paths.exists(f'{path}.index')


def find_base(path: str) -> str | None:
  """Returns the path of a partial checkpoint's base; None if it is whole.

  One that is damaged counts as whole: what reads its values says what is wrong.

  Raises:
    OSError: a store does not answer.
    cli.PassingError: it cannot be read.
  """
  with contextlib.ExitStack() as stack:
    local = path
    if urls.is_remote(path):
      folder = scratch.make('index')  # It has the names, and no values.
      stack.callback(paths.remove_folder, folder)
      local = os.path.join(folder, os.path.basename(path))
      with contextlib.suppress(FileNotFoundError):
        stores.download(f'{path}.index', f'{local}.index')

    def read() -> str | None:
      names = open_reader(local).get_variable_to_shape_map()
      return partial_names.find_base(names)

    try:
      base = trying(local, read)
    except DamageError:
      return None
  return base and os.path.join(os.path.dirname(path), base)


def _fetch(path: str) -> str:
  """Returns where the files of a checkpoint are on this machine."""
  try:
    return copies.fetch_prefix(path)
  except OSError as error:
    raise cli.choose_error(error)(
      f'checkpoint {path} cannot be read: {error.strerror}'
    ) from error


def open_reader(path: str) -> tf.train.CheckpointReader:
  """Returns the reader of a checkpoint on this machine.

  To be called within `trying`, and so are its methods.
  """
  _wait_for_disk(path)
  return tf.train.load_checkpoint(path)


def _wait_for_disk(path: str) -> None:
  """Returns once the disk gives what the reader begins with.

  The reader holds Python's lock: while a disk does not answer it, no thread of
  this process could say so, or give it up.
  """
  folder, name = os.path.split(path)
  # The reader says more of a folder or a file that is missing.
  with contextlib.suppress(FileNotFoundError, NotADirectoryError):
    for other in os.listdir(folder or os.curdir):
      if other.startswith(f'{name}.'):
        with open(os.path.join(folder, other), 'rb') as file:
          file.read(None if other.endswith('.index') else 1)


def trying(path: str, read: Callable[[], _Found]) -> _Found:
  """Returns read(), which is called again while its failure may pass.

  Args:
    read: reads it.

  Raises:
    DamageError: the checkpoint is not as it was written.
    cli.PassingError: it cannot be read; nobody knows whether it is whole.
  """
  waits = iter(retries.WAITS_SECS)
  while True:
    try:
      return read()
    except (cli.RunError, cli.UsageError, MemoryError):
      raise
    except Exception as error:
      reason = _explain(error)
      if _is_damage(error):
        raise DamageError(path, reason, _is_gone(path, error)) from error
      # A request to a store was repeated before; see storage/retries.py.
      is_of_store = urls.is_remote(str(getattr(error, 'filename', '')))
      wait_secs = next(waits, None)
      if wait_secs is None or is_of_store:
        raise cli.PassingError(
          f'checkpoint {path} cannot be read: {reason}; it may be whole, and '
          'is left as it is'
        ) from error
    _log.info(
      f'checkpoint {path} cannot be read: {reason}; trying again in '
      f'{wait_secs:g} s'
    )
    time.sleep(wait_secs)


def _is_damage(error: Exception) -> bool:
  """Whether an exception of a read says that the files are not as written."""
  said = _find_words_of_the_system(error)
  if said:
    return said == _ABSENT
  if not isinstance(error, tf.errors.OpError):
    return isinstance(error, _BROKEN)
  # The reader loses the kind of an error: only a checksum's has no words of
  # the system.
  is_of_reader = type(error) is tf.errors.OpError
  return isinstance(error, _DAMAGE) or (
    is_of_reader and not cli.is_passing(error)
  )


def _is_gone(path: str, error: Exception) -> bool:
  """Whether an exception of a read is of a file that is not there."""
  return _find_words_of_the_system(error) == _ABSENT or not is_there(path)


def _explain(error: Exception) -> str:
  """Returns the reason of an exception of a read, in one line."""
  if isinstance(error, tf.errors.OpError):
    return errors.explain(error)
  text = getattr(error, 'strerror', None) or str(error) or type(error).__name__
  return text.splitlines()[0]


def _find_words_of_the_system(error: Exception) -> str | None:
  """Returns the system's words for a failed call on a file, or None."""
  if isinstance(error, OSError):
    return error.strerror
  if not isinstance(error, tf.errors.OpError):
    return None
  # TensorFlow says 'PATH; WORDS', with more lines, or after a colon more words.
  for line in str(getattr(error, 'message', '')).splitlines():
    path, _, words = line.rpartition('; ')
    words = words.partition(':')[0]
    if '/' in path and words in _OF_THE_SYSTEM:
      return words
  return None


def _describe(shape: Sequence[int], extents: Any) -> Slice:
  """Returns the slice of a tensor_slice.proto's extents."""
  ranges = [
    (e.start, e.length if e.HasField('length') else size)
    for e, size in zip(extents, shape, strict=True)
  ]
  text = ':'.join(f'{start},{length}' for start, length in ranges)
  return Slice(*ranges[0], f'{" ".join(map(str, shape))} {text}')


def _find_entries(index: bytes) -> dict[str, tf_internals.BundleEntry]:
  """Returns {name: its entry} of an index: its slices, and where its bytes are.

  TensorFlow tells no program what these are. The index is a table in the format
  of LevelDB whose values are BundleEntryProtos.
  """
  found = {}
  footer = index[-_FOOTER_BYTES:]
  *_, offset, size = _read_varints(footer, 0, 4)[0]
  for _, handle in _iterate_block(index, offset, size):
    for key, value in _iterate_block(index, *_read_varints(handle, 0, 2)[0]):
      # That of a slice has a name of its own; that without one is the header.
      if key and not key.startswith(b'\0'):
        found[key.decode()] = tf_internals.BundleEntry.FromString(value)
  return found


def _iterate_block(
  data: bytes, offset: int, size: int
) -> Iterator[tuple[bytes, bytes]]:
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


def _read_varints(data: bytes, place: int, count: int) -> tuple[list[int], int]:
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
