"""Who takes which batch: a table on the ps of the global_step.

The term is that of tf.data service. Batches have tickets 0, 1, 2, ... of what
is still to be read (data_order.Rest). In lock-step the ticket follows from the
global_step and the worker, and nothing is asked for. Otherwise a worker takes a
lease, a range of tickets, before it begins them, and each push notes on the ps
that its batches are done, after the count of the global_step and in the same
message. So the table knows what is in whose hands:

  rows 0, 1      base global_step, next place of the rest, batch size;
                 tickets in a global step (0 if leased), is there a stream a
                 worker, -
  from 2         the ranges of the rest: first, end, -
                 or, with a stream a worker, its next place, -, -
  from ROWS      tickets that are leased, -, -
  from ROWS + 1  of each worker: first ticket not done, end of its lease, how
                 often it has come

Leases shrink towards the end (guided self-scheduling; Polychronopoulos and Kuck
1987, IEEE Transactions on Computers C-36), so that all workers end together. A
unit, the batches of one push, is handed out only if it is still needed for the
last global step. A worker that comes back gets what it had not done; what a
worker that is gone had not done goes to another one.

The table is a variable in each checkpoint. Its size is not that of the cluster,
so that it loads under any number of workers; the chief then turns what was in
anybody's hands into ranges of the rest (`fold`).
"""

from typing import NamedTuple

import numpy as np
import tensorflow.compat.v1 as tf

from distmnist import data_order, strategy

# What a chief may restore without: checkpoints of old have no table.
COLLECTION = 'distmnist/stream'
_ROWS = 512
_RANGES = 2
# The batches of the longest lease: some tenths of a second of a small net.
_MAX_LEASE = 256


class Dealing(NamedTuple):
  """How the batches of a training are dealt.

  Attributes:
    num_workers: int.
    batch_size: int.
    batches_per_push: int, the batches of one worker that one push takes in.
    last_step: int, the global step at which training ends.
    is_lock_step: bool, whether one push of each worker makes a global step.
    pushes_per_step: int, R; a push may be dropped if it is not the number of
      workers. 1 where each push is a global step, or is dropped and replaced.
    has_own_streams: bool, whether each worker reads all images on its own.
    steps_per_run: int, so many batches of a lease are one session.run.
  """

  num_workers: int
  batch_size: int
  batches_per_push: int
  last_step: int
  is_lock_step: bool
  pushes_per_step: int = 1
  has_own_streams: bool = False
  steps_per_run: int = 1

  @property
  def num_rows(self):
    """Of either half of the table."""
    return _ROWS * -(-(self.num_workers + _RANGES) // _ROWS)

  @property
  def batches_per_step(self):
    """Of one stream in a global step in lock-step; 0 if leased."""
    if not self.is_lock_step:
      return 0
    num = 1 if self.has_own_streams else self.num_workers
    return num * self.batches_per_push


class Lease(NamedTuple):
  """Tickets that a worker has, or may have.

  Attributes:
    first, end: int, tickets.
    rows: list of int, the rows of the table that change.
    values: int64 array [len(rows), 3], what they become.
    gone: int, the worker whose tickets they were, or None.
  """

  first: int
  end: int
  rows: list
  values: np.ndarray
  gone: int | None = None


def make_table(dealing, base_step=0, rests=None):
  """Returns a table of which nothing is leased, int64 [2 * num_rows, 3].

  Args:
    dealing: Dealing.
    base_step: int, the global step at which the rests are what is left.
    rests: list of data_order.Rest: one, or one a worker where they have
      streams of their own. By default all is to be read.
  """
  table = np.zeros([2 * dealing.num_rows, 3], np.int64)
  rests = rests or [data_order.Rest()]
  next_place = max(rest.next_place for rest in rests)
  table[0] = base_step, next_place, dealing.batch_size
  table[1] = dealing.batches_per_step, dealing.has_own_streams, 0
  if dealing.has_own_streams:
    rows = [(rest.next_place, 0, 0) for rest in rests]
  else:
    rows = [(first, end, 0) for first, end in rests[0].ranges]
  rows = rows[: dealing.num_rows - _RANGES]
  if rows:
    table[_RANGES : _RANGES + len(rows)] = rows
  return table


def read_rest(table, worker=0):
  """Returns the data_order.Rest that tickets are of.

  Args:
    table: int64 array [2 * num_rows, 3].
    worker: int, whose stream it is if each has one.
  """
  kept = table[_RANGES : len(table) // 2]
  if table[1, 1]:
    return data_order.Rest(int(kept[worker, 0]))
  return data_order.Rest(int(table[0, 1]), kept[kept[:, 0] < kept[:, 1], :2])


def fold(table, global_step, dealing, batches_per_update):
  """Returns the table of a life that begins with what another one has left.

  Args:
    table: int64 array [2 * num_rows, 3], as it was restored.
    global_step: int, of the same checkpoint.
    dealing: Dealing of the life that begins.
    batches_per_update: int; where the table knows nothing of the global steps
      that were done, each is taken for so many batches.
  """
  base_step, _, batch_size = table[0].tolist()
  batches_per_step, was_own, _ = table[1].tolist()
  is_untouched = not (batches_per_step or table[len(table) // 2, 0])
  is_older = is_untouched and base_step < global_step
  if not batch_size or base_step > global_step or is_older:
    done = global_step * batches_per_update * dealing.batch_size
    if dealing.has_own_streams:
      done //= dealing.num_workers
    rests = [data_order.Rest(done)] * (
      dealing.num_workers if dealing.has_own_streams else 1
    )
    return make_table(dealing, global_step, rests)
  num_rows = len(table) // 2
  leases = table[num_rows + 1 :]
  num_streams = dealing.num_workers if dealing.has_own_streams else 1
  rests = []
  for worker in range(num_streams):
    rest = read_rest(table, worker)
    if batches_per_step:
      end, undone = (global_step - base_step) * batches_per_step, []
    elif was_own:
      end, undone = min(leases[worker, :2].tolist()), []
    else:
      end = int(table[num_rows, 0])
      undone = leases[leases[:, 0] < leases[:, 1], :2].tolist()
    rests.append(
      rest.after(
        end * batch_size, [(a * batch_size, b * batch_size) for a, b in undone]
      )
    )
  if dealing.has_own_streams and not was_own:
    rests = [data_order.Rest(rests[0].next_place)] * num_streams
  return make_table(dealing, global_step, rests)


def choose_entry(table, global_step, worker, dealing):
  """Returns the Lease with which a worker begins, which may be empty.

  What it had not done in an earlier life is still its own.
  """
  own_row = len(table) // 2 + 1 + worker
  first, end, times = table[own_row].tolist()
  lease = None
  if first >= end:
    lease = choose_lease(table, global_step, worker, dealing)
  if lease is None:
    rows = [len(table) // 2, own_row]
    lease = Lease(first, max(first, end), rows, table[rows])
  values = lease.values.copy()
  values[-1, 2] = times + 1
  return lease._replace(values=values)


def choose_lease(table, global_step, worker, dealing):
  """Returns the next Lease of a worker that has done its last one, or None.

  Args:
    table: int64 array [2 * num_rows, 3].
    global_step: int, read after the table.
    worker: int.
    dealing: Dealing.
  """
  num_units = _count_units(table, global_step, dealing)
  if num_units <= 0:
    return None
  next_row = len(table) // 2
  own_row = next_row + 1 + worker
  num_tickets = num_units * dealing.batches_per_push
  leased = int(table[next_row, 0])
  first, end, times = table[own_row].tolist()
  first = max(first, end) if dealing.has_own_streams else leased
  values = [(leased + num_tickets, 0, 0), (first, first + num_tickets, times)]
  return Lease(
    first,
    first + num_tickets,
    [next_row, own_row],
    np.array(values, np.int64),
  )


def _count_units(table, global_step, dealing):
  """Returns how many pushes the next lease is of."""
  unit = dealing.batches_per_push
  steps_left = dealing.last_step - global_step
  needed = steps_left * dealing.pushes_per_step
  if is_exact(dealing):
    leases = table[len(table) // 2 + 1 :]
    in_hands = np.maximum(0, leases[:, 1] - leases[:, 0]).sum()
    needed -= -(-int(in_hands) // unit)
  most = max(1, _MAX_LEASE // unit)
  num_units = min(most, max(1, needed // (2 * dealing.num_workers)))
  # Of one session.run, as long as there is one for each worker.
  run = int(np.lcm(dealing.steps_per_run, unit)) // unit
  if num_units > run:
    num_units -= num_units % run
  elif needed >= run * dealing.num_workers:
    num_units = run
  return min(num_units, needed)


def is_exact(dealing):
  """Whether a push is one global step or none.

  Else an update takes in R of what the workers push, and drops the others:
  nobody knows what will be needed.
  """
  return dealing.pushes_per_step == 1


def choose_from_gone(table, worker, gone, dealing):
  """Returns the Lease of what a worker that is gone had not done, or None.

  Args:
    table: int64 array [2 * num_rows, 3].
    worker: int, who has nothing left to do.
    gone: iterable of int, workers.
    dealing: Dealing.
  """
  first_row = len(table) // 2 + 1
  for other in gone:
    first, end, times = table[first_row + other].tolist()
    if first >= end:
      continue
    own_row = first_row + worker
    own_first, own_end, own_times = table[own_row].tolist()
    left = end, end, times
    if dealing.has_own_streams:
      # The images stay those of the other; the work is this worker's.
      left = first, first, times
      start = max(own_first, own_end)
      first, end = start, start + end - first
    values = np.array([left, (first, end, own_times)], np.int64)
    return Lease(first, end, [first_row + other, own_row], values, other)
  return None


def is_owner(table, worker, first, end):
  """Whether a worker still has the tickets first..end, or another has.

  The table knows of those that were pushed: of several batches to a push some
  may be done that it does not know of.
  """
  known, known_end = table[len(table) // 2 + 1 + worker, :2].tolist()
  return known <= first and known_end == end


class Table:
  """The table's variable and what a worker does with it.

  Attributes:
    variable: tf.Variable, int64 [2 * num_rows, 3].
    is_marked: bool, whether pushes are noted, or need not be.
  """

  def __init__(self, global_step, dealing, worker):
    """
    Args:
      global_step: int64 scalar variable; the table is beside it.
      dealing: Dealing.
      worker: int, whose ops are built.
    """
    self._global_step = global_step
    self._dealing = dealing
    self._worker = worker
    self._device = global_step.device
    self.is_marked = dealing.is_lock_step
    fresh = make_table(dealing)
    with tf.device(self._device):
      self.variable = tf.Variable(
        # A constant of all of it would be in the graph of each worker.
        lambda: tf.pad(
          tf.constant(fresh[:_RANGES]), [[0, len(fresh) - _RANGES], [0, 0]]
        ),
        trainable=False,
        collections=[tf.GraphKeys.GLOBAL_VARIABLES, COLLECTION],
        name='stream',
        use_resource=True,
      )
    # The table first: a push that counts in between is then in somebody's hands
    # as well. The other way round it would be missing from both.
    with tf.device(self._device):
      table = self.variable.read_value()
      with tf.control_dependencies([table]):
        self._look = [global_step.read_value(), table]
    self._new = tf.placeholder(tf.int64, fresh.shape, 'new_stream')
    self._renew = self.variable.assign(self._new, read_value=False)
    if not dealing.is_lock_step:
      self._build_swap()

  def _build_swap(self):
    with tf.device(self._device):
      lock = tf.CriticalSection(name='stream_lock', shared_name='stream_lock')
    self._rows = tf.placeholder(tf.int64, [2])
    self._old_values = tf.placeholder(tf.int64, [2, 3])
    self._new_values = tf.placeholder(tf.int64, [2, 3])

    def swap():
      found = self.variable.gather_nd(self._rows[:, tf.newaxis])
      is_same = tf.reduce_all(tf.equal(found, self._old_values))

      def write():
        done = self.variable.scatter_nd_update(
          self._rows[:, tf.newaxis], self._new_values
        )
        with tf.control_dependencies([done]):
          return tf.constant(True)

      return tf.cond(is_same, write, lambda: tf.constant(False))

    with tf.device(self._device):
      self._swap = lock.execute(swap)

  def build_mark(self, ops):
    """Returns the op that notes, after `ops`, that a push's batches are done.

    All of it is done beside the global_step.

    Args:
      ops: list of ops, the count of the global_step among them.
    """
    self.is_marked = True
    row = self._dealing.num_rows + 1 + self._worker
    with tf.device(self._device), tf.control_dependencies(ops):
      return tf.raw_ops.ResourceScatterNdAdd(
        ref=self.variable.handle,
        indices=tf.constant([[row, 0]], tf.int64),
        updates=tf.constant([self._dealing.batches_per_push], tf.int64),
      )

  def look(self, session):
    """Returns (global_step, table), the table as it was before the step."""
    step, table = session.run(self._look)
    return int(step), table

  def look_at_step(self, session):
    """Returns the global_step, an int."""
    return int(session.run(self._global_step))

  def take(self, session, table, lease):
    """Takes a lease that was chosen from `table`.

    Returns:
      bool; False if another worker was quicker: look and choose anew.
    """
    return bool(
      session.run(
        self._swap,
        {
          self._rows: lease.rows,
          self._old_values: table[lease.rows],
          self._new_values: lease.values,
        },
      )
    )

  def hook(self):
    """Returns the hook by which the chief begins a new life of the table."""
    return _FoldHook(self)

  def begin_life(self, session):
    """Makes a table that was restored one of this life; all others wait."""
    dealing = self._dealing
    step, table = self.look(session)
    batches = dealing.batches_per_push * dealing.pushes_per_step
    new = fold(table, step, dealing, batches)
    if (new != table).any():
      session.run(self._renew, {self._new: new})


class _FoldHook(strategy.CenterHook):
  def __init__(self, table):
    self._table = table

  def on_new_center(self, session):
    self._table.begin_life(session)
