"""Leases: the batches that a worker may take next.

The term lease comes from tf.data service. In lock-step the ticket of a batch
follows from the global_step and the worker, and nothing is requested. Otherwise
a worker takes a lease, a range of tickets, before it starts them, and each push
notes on the ps that its batches are done, after counting the global_step and in
the same message. So the table (batch_table.py) knows which worker holds what.

Leases shrink towards the end (guided self-scheduling; Polychronopoulos and Kuck
1987, IEEE Transactions on Computers C-36), so that all workers end together. A
unit, the batches of one push, is handed out only if it is still needed for the
last global step. A worker that comes back gets its unfinished batches; those of
a worker that is gone go to another one.

Pure NumPy; the table itself is dispatcher.py's.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from distmnist.training.batches import batch_table

# Batches in the longest lease: some tenths of a second for a small net.
_MAX_LEASE = 256
# Where updates drop pushes, all workers go on until the last step, and what a
# slow one still holds then stays unread.
_MAX_LEFT_UNREAD = 64


class Lease(NamedTuple):
  """Tickets that a worker holds or may take.

  Attributes:
    first, end: tickets.
    rows: the rows of the table that change.
    values: int64 array [len(rows), 3], what they become.
    gone: the worker whose tickets they were.
  """

  first: int
  end: int
  rows: list[int]
  values: np.ndarray
  gone: int | None = None


def choose_entry(
  table: np.ndarray, global_step: int, worker: int, dealing: batch_table.Dealing
) -> Lease:
  """Returns the Lease, perhaps empty, that a worker starts with.

  It still holds what it did not finish in an earlier life.
  """
  own_row = batch_table.worker_row(table, worker)
  first, end, times = table[own_row].tolist()
  lease = None
  if first >= end:
    lease = choose_lease(table, global_step, worker, dealing)
  if lease is None:
    rows = [batch_table.leased_row(table), own_row]
    lease = Lease(first, max(first, end), rows, table[rows])
  values = lease.values.copy()
  values[-1, 2] = times + 1
  return lease._replace(values=values)


def choose_lease(
  table: np.ndarray, global_step: int, worker: int, dealing: batch_table.Dealing
) -> Lease | None:
  """Returns the next Lease of a worker that finished its last one, or None.

  Args:
    table: int64 array [2 * num_rows, 3].
    global_step: read after the table.
  """
  num_units = _count_units(table, global_step, dealing)
  if num_units <= 0:
    return None
  next_row = batch_table.leased_row(table)
  own_row = batch_table.worker_row(table, worker)
  num_tickets = num_units * dealing.batches_per_push
  leased = int(table[next_row, 0])
  first, end, times = table[own_row].tolist()
  first = max(first, end) if dealing.has_own_streams else leased
  values = [
    (leased + num_tickets, *table[next_row, 1:]),
    (first, first + num_tickets, times),
  ]
  return Lease(
    first,
    first + num_tickets,
    [next_row, own_row],
    np.array(values, np.int64),
  )


def is_surplus(
  table: np.ndarray, global_step: int, dealing: batch_table.Dealing
) -> bool:
  """Whether what workers hold would suffice if no push were dropped."""
  if dealing.is_exact:
    return False
  pushes = dealing.count_pushes_left(global_step)
  held = batch_table.count_held(table)
  return held >= pushes * dealing.batches_per_push


def _count_units(
  table: np.ndarray, global_step: int, dealing: batch_table.Dealing
) -> int:
  """Returns how many pushes the next lease covers."""
  unit = dealing.batches_per_push
  needed = dealing.count_pushes_left(global_step)
  if dealing.is_exact:
    needed -= -(-batch_table.count_held(table) // unit)
  longest = _MAX_LEASE if dealing.is_exact else _MAX_LEFT_UNREAD
  most = max(1, longest // unit)
  num_units = min(most, max(1, needed // (2 * dealing.num_workers)))
  # Whole session.runs, as long as there is one for each worker.
  run = int(np.lcm(dealing.steps_per_run, unit)) // unit
  if num_units > run:
    num_units -= num_units % run
  elif needed >= run * dealing.num_workers:
    num_units = run
  return min(num_units, needed)


def choose_from_gone(
  table: np.ndarray,
  worker: int,
  gone: Iterable[int],
  dealing: batch_table.Dealing,
) -> Lease | None:
  """Returns the Lease of what a lost worker did not finish, or None.

  Args:
    table: int64 array [2 * num_rows, 3].
    worker: has done all that it held.
    gone: the lost workers.
  """
  own_row = batch_table.worker_row(table, worker)
  for other in gone:
    row = batch_table.worker_row(table, other)
    first, end, times = table[row].tolist()
    if first >= end:
      continue
    own_first, own_end, own_times = table[own_row].tolist()
    left = end, end, times
    if dealing.has_own_streams:
      # The other keeps its images; this worker does the work with its own.
      left = first, first, times
      start = max(own_first, own_end)
      first, end = start, start + end - first
    values = np.array([left, (first, end, own_times)], np.int64)
    return Lease(first, end, [row, own_row], values, other)
  return None


def is_owner(table: np.ndarray, worker: int, first: int, end: int) -> bool:
  """Whether a worker, and not another, still holds the tickets first..end.

  The table only knows what was pushed: if a push has several batches, some may
  be done that it does not know of.
  """
  known, known_end = table[batch_table.worker_row(table, worker), :2].tolist()
  return known <= first and known_end == end
