"""Rows of an Arrow file that is mapped into memory, read by their numbers."""

from __future__ import annotations

import importlib
import mmap
import types
from collections.abc import Iterable
from typing import TYPE_CHECKING, BinaryIO

import numpy as np

if TYPE_CHECKING:
  import pyarrow as pa

# After so many rows the process gives the pages back that it has touched: the
# system has them, and they count as this process' memory as long as it maps
# them.
_ROWS_MAPPED = 1 << 12


def load_pyarrow(part: str = 'lib') -> types.ModuleType:
  """Returns a part of pyarrow, such as 'csv'.

  Raises:
    ImportError: it is not installed.
  """
  try:
    return importlib.import_module(f'pyarrow.{part}')
  except ImportError as error:
    raise ImportError(
      "CSV and Parquet files need pyarrow: pip install 'distmnist[data]'"
    ) from error


def write(
  file: BinaryIO, batches: Iterable[tuple[int, pa.RecordBatch]]
) -> None:
  """Writes (part, rows), such as those of the second file, parts in order."""
  pa, ipc = load_pyarrow(), load_pyarrow('ipc')
  writer = None
  for part, batch in batches:
    writer = writer or ipc.new_file(file, batch.schema)
    writer.write_batch(batch, custom_metadata={'part': str(part)})
    file.flush()  # Those who wait for the file see that it grows.
  (writer or ipc.new_file(file, pa.schema([]))).close()


class Rows:
  """Rows of a file that `write` has written; several threads may read them.

  Attributes:
    num_rows: those of all parts.
    part_sizes: int64 [num_parts], how many rows each part has.
  """

  def __init__(self, file: BinaryIO, num_parts: int) -> None:
    pa, ipc = load_pyarrow(), load_pyarrow('ipc')
    self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    reader = ipc.open_file(pa.py_buffer(self._map))
    self._schema = reader.schema
    found = [
      reader.get_batch_with_custom_metadata(i)
      for i in range(reader.num_record_batches)
    ]
    self._batches = [batch for batch, _ in found]
    sizes = np.array([batch.num_rows for batch in self._batches], np.int64)
    self._firsts = np.concatenate([[0], np.cumsum(sizes)])
    self.num_rows = int(self._firsts[-1])
    self.part_sizes = np.zeros(num_parts, np.int64)
    np.add.at(self.part_sizes, [int(m[b'part']) for _, m in found], sizes)
    self._unmap()

  def read(self, numbers: np.ndarray) -> dict[str, np.ndarray]:
    """Returns {column: array [len(numbers), ...]} of the rows, int64."""
    pa = load_pyarrow()
    owners = np.searchsorted(self._firsts, numbers, 'right') - 1
    order, parts = np.argsort(owners, kind='stable'), []
    for owner in np.unique(owners).tolist():
      rows = numbers[owners == owner] - self._firsts[owner]
      parts.append(self._batches[owner].take(pa.array(rows)))
    table = pa.Table.from_batches(parts, self._schema).combine_chunks()
    table = table.take(pa.array(np.argsort(order)))
    self._num_mapped += len(numbers)
    if self._num_mapped > _ROWS_MAPPED:
      self._unmap()
    return {
      name: _make_array(table.column(name).combine_chunks())
      for name in table.column_names
    }

  def _unmap(self) -> None:
    self._num_mapped = 0
    self._map.madvise(mmap.MADV_DONTNEED)


def _make_array(values: pa.Array) -> np.ndarray:
  """Returns the array of values, or of lists of one length; text is bytes."""
  if hasattr(values.type, 'list_size'):
    size = values.type.list_size
    return _make_array(values.flatten()).reshape(len(values), size)
  return values.to_numpy(zero_copy_only=False, writable=True)
