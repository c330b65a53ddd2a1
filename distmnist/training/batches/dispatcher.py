"""The table of which worker takes which batch, next to the global_step.

See batch_table.py for its contents, and leases.py for which worker may take
what next. The term dispatcher comes from tf.data service.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import tensorflow.compat.v1 as tf

from distmnist import graph_record
from distmnist.exchange.center import ps_lock
from distmnist.training.batches import batch_table
from distmnist.transport import strategy

if TYPE_CHECKING:
  import numpy as np

  from distmnist.logdir import restart as restart_lib
  from distmnist.training.batches import leases


class Table:
  """The table's variable and what a worker does with it.

  Attributes:
    variable: int64 [2 * num_rows, 3].
    dealing: with the last step of this run once `find_end` was called in a
      session.
    is_marked: whether pushes are noted or need not be.
  """

  def __init__(
    self, global_step: tf.Variable, dealing: batch_table.Dealing, worker: int
  ) -> None:
    """
    Args:
      global_step: int64 scalar variable; the table is on its device.
      worker: whose ops are built.
    """
    self._global_step = global_step
    self._dealing = self.dealing = dealing
    self._worker = worker
    self._device = global_step.device
    self.is_marked = dealing.is_lock_step
    fresh = batch_table.make_table(dealing)
    with tf.device(self._device):
      self.variable = tf.Variable(
        # A constant for the whole table would be in each worker's graph.
        lambda: tf.pad(
          tf.constant(fresh[: batch_table.RANGES]),
          [[0, len(fresh) - batch_table.RANGES], [0, 0]],
        ),
        trainable=False,
        name=batch_table.NAME,
        use_resource=True,
      )
    graph_record.current().optional.append(self.variable)
    # Read the table first: a push counted in between then also appears as held
    # by a worker. The other way round it would be missing from both.
    with tf.device(self._device):
      table = self.variable.read_value()
      with tf.control_dependencies([table]):
        self._look = [global_step.read_value(), table]
      self._first_step = table[batch_table.FIRST_STEP]
    self._new = tf.placeholder(tf.int64, fresh.shape, 'new_stream')
    self._renew = self.variable.assign(self._new, read_value=False)
    self._known_step = tf.placeholder(tf.int64, [], 'known_step')
    self._go_back = global_step.assign(self._known_step, read_value=False)
    if not dealing.is_lock_step:
      self._build_swap()

  def _build_swap(self) -> None:
    lock = ps_lock.Lock(self._device, 'stream_lock')
    self._rows = tf.placeholder(tf.int64, [2])
    self._old_values = tf.placeholder(tf.int64, [2, 3])
    self._new_values = tf.placeholder(tf.int64, [2, 3])

    def swap() -> tf.Tensor:
      found = self.variable.gather_nd(self._rows[:, tf.newaxis])
      is_same = tf.reduce_all(tf.equal(found, self._old_values))

      def write() -> tf.Tensor:
        done = self.variable.scatter_nd_update(
          self._rows[:, tf.newaxis], self._new_values
        )
        with tf.control_dependencies([done]):
          return tf.constant(True)

      return tf.cond(is_same, write, lambda: tf.constant(False))

    with tf.device(self._device):
      self._swap = lock.execute(swap)

  def build_mark(self, ops: Sequence[tf.Operation | tf.Tensor]) -> tf.Operation:
    """Returns the op that notes, after `ops`, that a push's batches are done.

    It runs entirely on the global_step's device.

    Args:
      ops: including the one that counts the global_step.
    """
    self.is_marked = True
    row = self._dealing.num_rows + 1 + self._worker
    with tf.device(self._device), tf.control_dependencies(ops):
      return tf.raw_ops.ResourceScatterNdAdd(
        ref=self.variable.handle,
        indices=tf.constant([[row, 0]], tf.int64),
        updates=tf.constant([self._dealing.batches_per_push], tf.int64),
      )

  def look(self, session: tf.Session) -> tuple[int, np.ndarray]:
    """Returns (global_step, table); the table is read before the step."""
    step, table = session.run(self._look)
    return int(step), table

  def look_at_step(self, session: tf.Session) -> int:
    """Returns the global_step."""
    return int(session.run(self._global_step))

  def take(
    self, session: tf.Session, table: np.ndarray, lease: leases.Lease
  ) -> bool:
    """Takes a lease that was chosen from `table`.

    Returns:
      False if another worker was quicker: look and choose again.
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

  def hook(self, restart: restart_lib.Restart | None = None) -> _LifeHook:
    """Returns the CenterHook by which a new center has its table begin anew.

    Args:
      restart: tells whether the center is another run's; None if it never is.
    """
    return _LifeHook(self, restart)

  def begin_life(
    self, session: tf.Session, is_of_other_run: bool = False
  ) -> None:
    """Adapts a restored table to this life; all other workers wait.

    Args:
      is_of_other_run: whether another run has left it.
    """
    dealing = self._dealing
    found, table = self.look(session)
    step = batch_table.count_steps(table, found)
    if step < found:
      session.run(self._go_back, {self._known_step: step})
    if is_of_other_run:
      new = batch_table.begin_run(dealing, step)
    else:
      new = batch_table.fold(table, step, dealing, dealing.batches_per_update)
    if (new != table).any():
      session.run(self._renew, {self._new: new})

  def find_end(self, session: tf.Session) -> int:
    """Returns the last step of the run, which may begin at any step."""
    first_step = int(session.run(self._first_step))
    self.dealing = self._dealing.begun_at(first_step)
    return self.dealing.last_step


class _LifeHook(strategy.CenterHook):
  def __init__(self, table: Table, restart: restart_lib.Restart | None) -> None:
    self._table = table
    self._restart = restart

  def on_new_center(self, session: tf.Session) -> None:
    is_of_other_run = bool(self._restart and self._restart.is_of_other_run)
    self._table.begin_life(session, is_of_other_run)
