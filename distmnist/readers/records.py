"""Records at known places of files, read one by one."""

import contextlib
import os

import numpy as np

from distmnist.readers import paths as paths_lib

# Adjacent records, which a disk reads in one go.
_BLOCK_SIZE = 256


class Records:
  """The records of some files, numbered from 0 across all of them.

  Attributes:
    num_records: int.
    block_sizes: int64 array, see data_order.Blocks.
  """

  def __init__(self, paths, places):
    """
    Args:
      paths: list of str.
      places: list of (offsets, lengths) per file: int64 arrays, in bytes.
    """
    self._paths = paths
    self._places = places
    self._files = [
      KnownFile(path, int((offsets + lengths).max(initial=0)))
      for path, (offsets, lengths) in zip(paths, places, strict=True)
    ]
    sizes = [len(offsets) for offsets, _ in places]
    self._firsts = np.cumsum([0, *sizes])
    self.num_records = int(self._firsts[-1])
    self.block_sizes = np.concatenate([_cut(size) for size in sizes])

  def read(self, numbers):
    """Returns the records (array of bytes objects) of int64 `numbers`.

    Raises:
      OSError: a file is gone.
      ValueError: a file is not what it was.
    """
    found = np.empty(len(numbers), object)
    owners = np.searchsorted(self._firsts, numbers, 'right') - 1
    for owner in np.unique(owners).tolist():
      chosen = np.flatnonzero(owners == owner)
      rows = numbers[chosen] - self._firsts[owner]
      offsets, lengths = (array[rows].tolist() for array in self._places[owner])
      with opened(self._paths[owner]) as file:
        self._files[owner].check(file)
        for i, offset, length in zip(
          chosen.tolist(), offsets, lengths, strict=True
        ):
          found[i] = record = os.pread(file, length, offset)
          if len(record) != length:
            raise self._files[owner].explain()
    return found

  def locate(self, number):
    """Returns (path, number in the file, offset in bytes) of a record."""
    owner = int(np.searchsorted(self._firsts, number, 'right')) - 1
    row = int(number - self._firsts[owner])
    return self._paths[owner], row, int(self._places[owner][0][row])


class KnownFile:
  """A file that may grow, but must begin with what it had at the start."""

  def __init__(self, path, size):
    """
    Args:
      path: str.
      size: int, how many of its first bytes must stay.
    """
    self._path = path
    self._size = size
    with opened(path) as file:
      self._state = _read_state(file)
      self._sample = paths_lib.sample(file, self._size)

  def check(self, file):
    """Raises ValueError if the open `file` is no longer what it was."""
    state = _read_state(file)
    if state == self._state:
      return
    # Lines that came or went in its middle have moved its end.
    if paths_lib.sample(file, self._size) != self._sample:
      raise self.explain()
    self._state = state

  def explain(self):
    return ValueError(f'{self._path} has changed since the training began')


def _read_state(file):
  """Returns what changes with each write to a file, or if it is replaced."""
  found = os.fstat(file)
  return found.st_ino, found.st_mtime_ns, found.st_size


@contextlib.contextmanager
def opened(path):
  """Yields the descriptor (int) of a file, opened to be read."""
  file = os.open(path, os.O_RDONLY)
  try:
    yield file
  except OSError as error:
    error.filename = error.filename or path  # A read that fails names none.
    raise
  finally:
    os.close(file)


def _cut(size):
  """Returns the sizes of the blocks of a file of `size` records."""
  rest = size % _BLOCK_SIZE
  return np.array(
    [_BLOCK_SIZE] * (size // _BLOCK_SIZE) + [rest] * bool(rest), np.int64
  )
