"""Makes and reads the table (an array) of which worker has which batch.

Batches have tickets 0, 1, 2, ... of what is still to be read (data_order.Rest).
The rows of the table:

  rows 0, 1      base global_step, next place of the rest, batch size;
                 tickets in a global step (0 if leased), whether each worker has
                 a stream, tickets in a global step if leased (0 if not known)
  from 2         the ranges of the rest: first, end, -
                 or, if each worker has a stream, its next place, whether
                 the worker is in this life, -
                 in row 2 the last is the global step at which the run began:
                 that of another run's checkpoint, or 0
  from ROWS      number of tickets leased; images in a global step; those in
                 each global step of earlier lives, see describe_sizes
  from ROWS + 1  for each worker: first ticket not done, end of its lease, how
                 often it has joined

The table is a variable in each checkpoint. Its size does not depend on that of
the cluster, so that it loads under any number of workers; the chief then turns
what each worker held into ranges of the rest (`fold`). Which worker may take
what is in leases.py.

Pure NumPy; the variable itself is dispatcher.py's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from distmnist.data import data_order

# The variable's, in each checkpoint.
NAME = 'stream'
_ROWS = 512
RANGES = 2
# The row and the column of the global step at which the run began.
FIRST_STEP = RANGES, 2
MIXED = 1
# The last step of a training that only --train_secs ends: no cluster makes it.
NO_LAST_STEP = 10**9


class Dealing(NamedTuple):
  """The way in which the batches of a training are dealt.

  Attributes:
    batches_per_push: how many batches of one worker a push covers.
    last_step: the global step at which training ends, see `begun_at`;
      NO_LAST_STEP if only time ends it.
    is_lock_step: whether one push of each worker makes a global step.
    pushes_per_step: R; pushes may be dropped if it is not the number of
      workers. 1 if each push is a global step, or is dropped and replaced.
    has_own_streams: whether each worker reads all images on its own.
    steps_per_run: batches of a lease in one session.run.
    train_steps: from --train_steps.
    epoch_steps: how many global steps --epochs makes.
  """

  num_workers: int
  batch_size: int
  batches_per_push: int
  last_step: int
  is_lock_step: bool
  pushes_per_step: int = 1
  has_own_streams: bool = False
  steps_per_run: int = 1
  train_steps: int | None = None
  epoch_steps: int | None = None

  def begun_at(self, first_step: int) -> Dealing:
    """Returns the Dealing of a run that began at a global step.

    --epochs are counted from there, and --train_steps is a global step.
    """
    if self.epoch_steps is None:
      return self
    ends = [first_step + self.epoch_steps]
    if self.train_steps is not None:
      ends.append(self.train_steps)
    return self._replace(last_step=min(ends))

  @property
  def known_last_step(self) -> int | None:
    """The global step at which training ends; None if only time ends it."""
    has_flag = self.train_steps is not None or self.epoch_steps is not None
    is_known = has_flag or self.last_step != NO_LAST_STEP
    return self.last_step if is_known else None

  @property
  def num_rows(self) -> int:
    """The rows of either half of the table."""
    return _ROWS * -(-(self.num_workers + RANGES) // _ROWS)

  @property
  def is_exact(self) -> bool:
    """Whether a push is one global step or none.

    Otherwise an update uses R of the workers' pushes and drops the others, so
    how many will be needed is not known.
    """
    return self.pushes_per_step == 1

  @property
  def batches_per_update(self) -> int:
    """The batches of all workers in a global step."""
    return self.batches_per_push * self.pushes_per_step

  @property
  def images_per_step(self) -> int:
    """Images in a global step."""
    return self.batch_size * self.batches_per_update

  def count_pushes_left(self, global_step: int) -> int:
    """Returns how many pushes the steps after this one take in."""
    return (self.last_step - global_step) * self.pushes_per_step

  @property
  def batches_per_step(self) -> int:
    """One stream's batches in a lock-step global step; 0 if leased."""
    if not self.is_lock_step:
      return 0
    num = 1 if self.has_own_streams else self.num_workers
    return num * self.batches_per_push


def leased_row(table: np.ndarray) -> int:
  """Returns the row of the number of leased tickets."""
  return len(table) // 2


def worker_row(table: np.ndarray, worker: int) -> int:
  """Returns the row of the tickets that a worker holds."""
  return leased_row(table) + 1 + worker


def make_table(
  dealing: Dealing,
  base_step: int = 0,
  rests: Sequence[data_order.Rest] | None = None,
  earlier: int = 0,
) -> np.ndarray:
  """Returns a table with nothing leased, int64 [2 * num_rows, 3].

  Args:
    base_step: the global step at which `rests` are left to read.
    rests: one, or one per worker, also of earlier lives, if each has its own
      stream. By default everything is left to read.
    earlier: the images in each earlier global step, see describe_sizes.
  """
  table = np.zeros([2 * dealing.num_rows, 3], np.int64)
  num_streams = dealing.num_workers if dealing.has_own_streams else 1
  rests = rests or [data_order.Rest()] * num_streams
  next_place = max(rest.next_place for rest in rests)
  table[0] = base_step, next_place, dealing.batch_size
  is_counted = dealing.is_exact and not dealing.is_lock_step
  per_push = dealing.batches_per_push if is_counted else 0
  table[1] = dealing.batches_per_step, dealing.has_own_streams, per_push
  table[dealing.num_rows] = 0, dealing.images_per_step, earlier
  if dealing.has_own_streams:
    rows = [
      (rest.next_place, worker < dealing.num_workers, 0)
      for worker, rest in enumerate(rests)
    ]
  else:
    rest = rests[0].join_nearest(dealing.num_rows - RANGES)
    rows = [(first, end, 0) for first, end in rest.ranges]
  if rows:
    table[RANGES : RANGES + len(rows)] = rows
  return table


def read_rest(table: np.ndarray, worker: int = 0) -> data_order.Rest:
  """Returns the data_order.Rest that tickets refer to.

  Args:
    table: int64 array [2 * num_rows, 3].
    worker: whose stream to return if each worker has one.
  """
  kept = table[RANGES : leased_row(table)]
  if table[1, 1]:
    return data_order.Rest(int(kept[worker, 0]))
  return data_order.Rest(int(table[0, 1]), kept[kept[:, 0] < kept[:, 1], :2])


def count_held(table: np.ndarray) -> int:
  """Returns how many tickets workers hold and have not done."""
  leases = table[worker_row(table, 0) :]
  return int(np.maximum(0, leases[:, 1] - leases[:, 0]).sum())


def count_steps(table: np.ndarray, global_step: int) -> int:
  """Returns the global step up to which the table has batches as done.

  A push is first counted and then noted, and a checkpoint may fall in between:
  its global_step is ahead of its table, by batches that will be read again.
  Their steps would then be missing at the end of the training.

  Args:
    table: int64 array [2 * num_rows, 3], as it was restored.
    global_step: from the same checkpoint.

  Returns:
    At most `global_step`; `global_step` itself if the table cannot tell.
  """
  base_step, batches_per_push = int(table[0, 0]), int(table[1, 2])
  leased = int(table[leased_row(table), 0])
  if not (batches_per_push and leased) or base_step > global_step:
    return global_step
  done = leased - count_held(table)
  return min(global_step, base_step + done // batches_per_push)


def find_first_step(table: np.ndarray) -> int:
  """Returns the global step at which the run of a table began."""
  return int(table[FIRST_STEP])


def begin_run(dealing: Dealing, global_step: int) -> np.ndarray:
  """Returns the table of a run that begins with the weights of another.

  It reads the examples from the beginning.

  Args:
    global_step: of the checkpoint that it begins with.
  """
  table = make_table(dealing, global_step)
  table[FIRST_STEP] = global_step
  return table


def fold(
  table: np.ndarray, global_step: int, dealing: Dealing, batches_per_update: int
) -> np.ndarray:
  """Returns the table of a life that starts with what the previous one left.

  Args:
    table: int64 array [2 * num_rows, 3], as it was restored.
    global_step: from the same checkpoint.
    dealing: Dealing of the life that starts.
    batches_per_update: if the table does not know the global steps that were
      done, each is taken to be this many batches.
  """
  folded = _fold(table, global_step, dealing, batches_per_update)
  folded[FIRST_STEP] = table[FIRST_STEP]
  return folded


def _fold(
  table: np.ndarray, global_step: int, dealing: Dealing, batches_per_update: int
) -> np.ndarray:
  base_step, _, batch_size = table[0].tolist()
  batches_per_step, was_own, _ = table[1].tolist()
  num_streams = dealing.num_workers if dealing.has_own_streams else 1
  earlier = describe_sizes(table, global_step, dealing.images_per_step)
  is_untouched = not (batches_per_step or table[leased_row(table), 0])
  is_older = is_untouched and base_step < global_step
  if base_step > global_step or is_older:
    done = global_step * batches_per_update * dealing.batch_size
    if dealing.has_own_streams:
      done //= dealing.num_workers
    rests = [data_order.Rest(done)] * num_streams
    return make_table(dealing, global_step, rests, earlier)
  num_rows = leased_row(table)
  leases = table[worker_row(table, 0) :]
  was_there = np.ones(num_rows, bool)
  if dealing.has_own_streams and was_own:
    kept = table[RANGES:num_rows]
    # Also of those who are not in this life: they may come back.
    known = np.flatnonzero(kept[:, :2].any(1)) + 1
    num_streams = max([num_streams, *known.tolist()])
    was_there = kept[:, 1] > 0
  rests = []
  for worker in range(num_streams):
    rest = read_rest(table, worker)
    if not was_there[worker]:
      end, undone = 0, []
    elif batches_per_step:
      end, undone = (global_step - base_step) * batches_per_step, []
    elif was_own:
      end, undone = min(leases[worker, :2].tolist()), []
    else:
      end = int(table[num_rows, 0])
      undone = leases[leases[:, 0] < leases[:, 1], :2].tolist()
    undone = [(a * batch_size, b * batch_size) for a, b in undone]
    rests.append(rest.after(end * batch_size, undone))
  if dealing.has_own_streams and not was_own:
    rests = [data_order.Rest(rests[0].next_place)] * num_streams
  return make_table(dealing, global_step, rests, earlier)


def has_mixed_steps(
  table: np.ndarray, global_step: int, dealing: Dealing
) -> bool:
  """Whether global steps of lives up to `dealing` had different sizes.

  If so, the number of global steps does not tell how many images were read.

  Args: as `fold` takes them.
  """
  return bool(describe_sizes(table, global_step, dealing.images_per_step))


def count_images_read(
  table: np.ndarray, global_step: int, dealing: Dealing
) -> int:
  """Returns how many images were read for a checkpoint's steps.

  Args: as `fold` takes them.
  """
  folded = fold(table, global_step, dealing, dealing.batches_per_update)
  streams = range(dealing.num_workers if dealing.has_own_streams else 1)
  return sum(read_rest(folded, worker).count_read() for worker in streams)


def describe_sizes(
  table: np.ndarray, global_step: int, images_per_step: int
) -> int:
  """Returns that int for a life that begins.

  Args:
    table: int64 array [2 * num_rows, 3], of the life before.
    global_step: at which that life ended.
    images_per_step: of the life that begins.
  """
  base_step = int(table[0, 0])
  _, size, earlier = table[len(table) // 2].tolist()
  if earlier == MIXED:
    return MIXED
  sizes = set()
  if base_step:
    sizes.add(-earlier or size)
  # A life may have ended before its first step.
  if global_step != base_step:
    sizes.add(size)
  sizes.discard(0)  # Of a checkpoint that does not tell.
  if not sizes or sizes == {images_per_step}:
    return 0
  return -sizes.pop() if len(sizes) == 1 else MIXED
