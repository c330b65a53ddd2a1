"""Updates of some rows of a table, no row twice, by an optimizer's formula.

What such an update omits for rows that are not in the batch:

  sgd, adagrad, ftrl   nothing: a gradient of 0 changes no row, so these act as
                       they do on dense variables
  momentum, nesterov   a row does not keep moving along its velocity, which does
                       not decay
  rmsprop              likewise, and its mean square does not decay
  adam, adamw          likewise for both moments; the bias correction counts all
                       updates, not only those of the row (LazyAdam)

Decoupled weight decay acts only on dense variables.

TensorFlow's own kernels change one row after the other where it is, and wait
for the memory at each: 0.8 ms for 1,000 rows of 64 numbers in a large table,
with Adagrad. Here the rows and their slots are copied out, which TensorFlow
does with prefetching, changed together and copied back: 0.25 ms.

A whole row would be lost if another worker's update came between the two
copies. So a ps updates its tables for one worker after the other; a worker's
turn begins when all of its gradients for that ps have arrived, and waits for
nothing but the ps itself. If a worker dies while it waits, the next one may
begin too early (exchange/center/ps_lock.py): then some rows miss one of two
updates, once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import tensorflow.compat.v1 as tf

from distmnist.nn import formulas
from distmnist.tables import sparse_table, touched_rows
from distmnist.transport import wire

if TYPE_CHECKING:
  from distmnist.transport.strategy import MakeOptimizer


_FORMULAS = {name: formulas.make(name) for name in formulas.KINDS}
# Optimizers whose steps need more than the rows that have a gradient.
WITHOUT = tuple(
  name
  for name, formula in _FORMULAS.items()
  if isinstance(formula, formulas.LayerFormula)
)
# Those that move a weight whose gradient is 0, but no row without one.
LAZY = tuple(name for name, formula in _FORMULAS.items() if formula.is_lazy)
# How many slots, each as large as a table, each of the others keeps for it.
NUM_SLOTS = {
  name: len(formula.slots)
  for name, formula in _FORMULAS.items()
  if name not in WITHOUT
}


class RowSlots:
  """What optimizers keep beside rows, and how it begins beside new ones."""

  def __init__(self) -> None:
    self._optimizers = []

  def watch(self, make_optimizer: MakeOptimizer) -> MakeOptimizer:
    """Returns a make_optimizer whose optimizers `begin` then knows.

    Args:
      make_optimizer: see strategy.Strategy.minimize.
    """

    def make(
      is_local: bool = False, rate_factor: tf.Tensor | None = None
    ) -> tf.train.Optimizer:
      optimizer = make_optimizer(is_local=is_local, rate_factor=rate_factor)
      self._optimizers.append(optimizer)
      return optimizer

    return make

  def begin(
    self, variable: tf.Variable, rows: tf.Tensor
  ) -> list[tuple[tf.Variable, tf.Tensor]]:
    """Returns what the slots of new rows begin with, once all slots are made.

    Args:
      variable: the shard of a table.
      rows: float32 [n, width], the first values of its new rows.

    Returns:
      The list of (slot, values like `rows`).
    """
    found = []
    for optimizer in self._optimizers:
      for kept, slot in optimizer.list_slots(variable):
        value = kept.begin(rows) if callable(kept.begin) else kept.begin
        found.append((slot, value + tf.zeros_like(rows)))
    return found


def begin_turns(
  pairs: Sequence[tuple[Any, tf.Variable]],
  find_rate: Callable[[str], float | tf.Tensor],
) -> dict[str, Turn]:
  """Begins the turns of an update on each ps with rows to update.

  Args:
    pairs: (gradient, tf.Variable); the gradients of rows are tf.IndexedSlices,
      each row once.
    find_rate: callable(device) -> the rate of formulas.Formula.update there.

  Returns:
    {device of rows: Turn}.
  """
  arrived, turns = {}, {}
  for gradient, variable in pairs:
    if isinstance(gradient, tf.IndexedSlices):
      tensors = arrived.setdefault(variable.device, [])
      tensors += [gradient.values, gradient.indices]
  for device, tensors in arrived.items():
    with tf.device(device):
      rate = tf.identity(find_rate(device))  # It may come from another ps.
      turns[device] = Turn(device, rate, [*tensors, rate])
  return turns


class Turn:
  """The time in which a ps updates its tables for one worker.

  TensorFlow ends it, too, when the step fails in which it began.
  """

  def __init__(
    self, device: str, rate: tf.Tensor, ready: Sequence[tf.Tensor]
  ) -> None:
    """
    Args:
      rate: float32 scalar tensor on the device.
      ready: on it, which are there before the turn begins.
    """
    self._device, self._rate, self._done = device, rate, []
    self._begin = []
    # Without a ps there is no other worker.
    if wire.is_on_ps(rate):
      with tf.device(device):
        mutex = tf.raw_ops.MutexV2(shared_name='distmnist/row_updates')
        with tf.control_dependencies(ready):
          self._begin = [tf.raw_ops.MutexLock(mutex=mutex)]

  def update_rows(
    self,
    formula: formulas.Formula,
    gradient: tf.IndexedSlices,
    variable: tf.Variable,
    slots: Sequence[tf.Variable],
  ) -> tf.Operation:
    """Returns the op that updates rows of a variable, in the turn.

    Args:
      gradient: tf.IndexedSlices of float32 [n, width], each row once.
      variable: the shard of a table.
      slots: beside it, like `formula.slots`.
    """
    kept, rows = [variable, *slots], gradient.indices
    with tf.control_dependencies(self._begin):
      weights, *before = [x.sparse_read(rows) for x in kept]
      weights, after = formula.update(
        weights, before, gradient.values, self._rate
      )
      updated = [
        sparse_table.set_rows(x, rows, value)
        for x, value in zip(kept, [weights, *after], strict=True)
      ]
      self._done.append(
        tf.group(*touched_rows.mark_after(updated, variable, rows))
      )
    return self._done[-1]

  def end(self) -> tf.Operation:
    """Returns the op that ends the turn, once all in it is done."""
    with tf.device(self._device), tf.control_dependencies(self._done):
      if self._begin:
        return tf.raw_ops.ConsumeMutexLock(mutex_lock=self._begin[0])
      return tf.no_op()
