"""Records at known places of files, read one by one."""

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
      paths_lib.KnownFile(path, int((offsets + lengths).max(initial=0)))
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
      with paths_lib.opened(self._paths[owner]) as file:
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


def _cut(size):
  """Returns the sizes of the blocks of a file of `size` records."""
  rest = size % _BLOCK_SIZE
  return np.array(
    [_BLOCK_SIZE] * (size // _BLOCK_SIZE) + [rest] * bool(rest), np.int64
  )
