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

import functools

import tensorflow.compat.v1 as tf

from distmnist.nn import row_formulas
from distmnist.tables import sparse_table, touched_rows
from distmnist.transport import wire

# Optimizers whose steps need more than the rows that have a gradient.
WITHOUT = 'lars', 'lamb'
# Those that move a weight whose gradient is 0, but no row without one.
LAZY = 'momentum', 'nesterov', 'rmsprop', 'adam', 'adamw'
# How many slots, each as large as a table, each of the others keeps for it.
NUM_SLOTS = {
  'sgd': 0,
  'momentum': 1,
  'nesterov': 1,
  'adagrad': 1,
  'adam': 2,
  'adamw': 2,
  'rmsprop': 2,
  'ftrl': 2,
}


def add(optimizer):
  """Makes a tf.train.Optimizer update tables by rows.

  The rows that it updates are marked as touched, if they have marks. Gradients
  of other variables are whole: whole_gradients.py.
  """
  updates = _RowUpdates(optimizer)
  optimizer.apply_gradients = updates.apply_gradients
  optimizer._prepare = updates.prepare
  optimizer._resource_apply_sparse_duplicate_indices = updates.update
  optimizer._finish = updates.finish


class RowSlots:
  """What optimizers keep beside rows, and how it begins beside new ones."""

  def __init__(self):
    self._optimizers = []

  def watch(self, make_optimizer):
    """Returns a make_optimizer whose optimizers `begin` then knows.

    Args:
      make_optimizer: see strategy.Strategy.minimize.
    """

    def make(is_local=False, rate_factor=None):
      optimizer = make_optimizer(is_local=is_local, rate_factor=rate_factor)
      self._optimizers.append(optimizer)
      return optimizer

    return make

  def begin(self, variable, rows):
    """Returns what the slots of new rows begin with, once all slots are made.

    Args:
      variable: tf.Variable, the shard of a table.
      rows: float32 [n, width], the first values of its new rows.

    Returns:
      The list of (slot, values like `rows`).
    """
    found = []
    for optimizer in self._optimizers:
      formula = row_formulas.find(optimizer)
      if formula is None:  # It takes no tables.
        continue
      values = formula.begin(optimizer, rows)
      for name, value in zip(formula.slots, values, strict=True):
        slot = optimizer.get_slot(variable, name)
        if slot is not None:
          found.append((slot, value + tf.zeros_like(rows)))
    return found


class _RowUpdates:
  """The updates of rows in an optimizer's apply_gradients."""

  def __init__(self, optimizer):
    """
    Args:
      optimizer: tf.train.Optimizer.
    """
    self._optimizer, self._formula = optimizer, row_formulas.find(optimizer)
    self._apply_gradients = optimizer.apply_gradients
    self._prepare, self._finish = optimizer._prepare, optimizer._finish
    self._arrived = self._turns = None  # By the device of the rows.

  def apply_gradients(self, pairs, *args, **kwargs):
    pairs, self._arrived = list(pairs), {}
    for gradient, variable in pairs:
      if isinstance(gradient, tf.IndexedSlices):
        tensors = self._arrived.setdefault(variable.device, [])
        tensors += [gradient.values, gradient.indices]
    return self._apply_gradients(pairs, *args, **kwargs)

  def prepare(self):
    self._prepare()
    self._turns = {}
    for device, tensors in self._arrived.items():
      with tf.device(device):
        # It may come from another ps.
        rate = self._formula.find_rate(self._optimizer, device)
        rate = tf.identity(rate)
        self._turns[device] = _Turn(device, rate, [*tensors, rate])

  def update(self, gradient, variable, rows):
    """Returns the op that updates `rows` of a variable.

    Args:
      gradient: float32 [n, width].
      variable: tf.Variable.
      rows: int64 [n], each once.
    """
    get_slot = functools.partial(self._optimizer.get_slot, variable)
    kept = [variable, *map(get_slot, self._formula.slots)]

    def build(rate):
      before = [x.sparse_read(rows) for x in kept]
      after = self._formula.compute(self._optimizer, rate, gradient, *before)
      updated = [
        sparse_table.set_rows(x, rows, value)
        for x, value in zip(kept, after, strict=True)
      ]
      return tf.group(*touched_rows.mark_after(updated, variable, rows))

    return self._turns[variable.device].execute(build)

  def finish(self, updates, name):
    ends = [turn.end() for turn in self._turns.values()]
    return self._finish([*updates, *ends], name)


class _Turn:
  """The time in which a ps updates its tables for one worker.

  TensorFlow ends it, too, when the step fails in which it began.
  """

  def __init__(self, device, rate, ready):
    """
    Args:
      device: str.
      rate: float32 scalar tensor on the device.
      ready: list of tensors on it, which are there before the turn begins.
    """
    self._device, self._rate, self._done = device, rate, []
    self._begin = []
    # Without a ps there is no other worker.
    if wire.is_on_ps(rate):
      with tf.device(device):
        mutex = tf.raw_ops.MutexV2(shared_name='distmnist/row_updates')
        with tf.control_dependencies(ready):
          self._begin = [tf.raw_ops.MutexLock(mutex=mutex)]

  def execute(self, build):
    """Returns the op that build(rate) returns, in the turn."""
    with tf.control_dependencies(self._begin):
      self._done.append(build(self._rate))
    return self._done[-1]

  def end(self):
    """Returns the op that ends the turn, once all in it is done."""
    with tf.device(self._device), tf.control_dependencies(self._done):
      if self._begin:
        return tf.raw_ops.ConsumeMutexLock(mutex_lock=self._begin[0])
      return tf.no_op()
