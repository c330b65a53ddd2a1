"""Batches that are read in the background before their steps ask for them."""

import collections
from concurrent import futures


class ReadAhead:
  """Reads the batches of a whole run at once, and hands them out by their rows.

  A row is what a step is fed with: the place of its batch and the numbers of
  its examples, see fed_rows.FedRows.
  """

  def __init__(self, read, num_threads):
    """
    Args:
      read: callable(indices) -> list of arrays [len(indices), ...].
      num_threads: int, threads in which runs are read.
    """
    self._read = read
    self._pool = futures.ThreadPoolExecutor(num_threads, 'read_ahead')
    self._kept = collections.OrderedDict()  # The first row's bytes: _Run.
    # The current run, those ahead, and one that may come again.
    self._max_kept = num_threads + 2

  def announce(self, rows):
    """Starts to read batches, unless that has started already.

    Args:
      rows: int64 array [num_batches, 1 + batch_size].
    """
    key = rows[0].tobytes()
    if key in self._kept and len(self._kept[key].places) >= len(rows):
      return
    future = self._pool.submit(self._read, rows[:, 1:].ravel())
    places = {row.tobytes(): i for i, row in enumerate(rows)}
    while len(self._kept) >= self._max_kept:
      self._kept.popitem(last=False)[1].future.cancel()
    self._kept[key] = _Run(places, future)

  def take(self, row):
    """Returns the arrays of a batch; reads it now if it was not announced.

    Args:
      row: int64 array [1 + batch_size].
    """
    key, size = row.tobytes(), len(row) - 1
    for run in list(self._kept.values()):
      number = run.places.get(key)
      if number is not None and not run.future.cancelled():
        start = number * size
        return [array[start : start + size] for array in run.future.result()]
    return self._read(row[1:])


_Run = collections.namedtuple('_Run', 'places future')
