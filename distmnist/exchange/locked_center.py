"""Pushes and pulls of the center under one lock on ps 0.

Rules that depend on the staleness of a push need it to be exact: no update may
land between the read of the global step and the update that is scaled by it,
nor in the middle of a pull. The lock is a ps_lock.Lock. All that a push sends
is on the ps before the lock is taken, so that no worker waits for another's
network. If a worker is killed while it holds the lock, the ps cancels its step,
which releases the lock.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import tensorflow.compat.v1 as tf

from distmnist import graph_record
from distmnist.exchange.center import ps_lock
from distmnist.exchange.copies import local_copies
from distmnist.transport import strategy, variable_lists

if TYPE_CHECKING:
  from distmnist.cluster.cluster import Cluster
  from distmnist.cluster.stop_request import StopRequest
  from distmnist.transport.strategy import MarkDone

# Returns the op that updates the center, of (part of what is pushed, shard) on
# their ps, and the staleness, an int64 scalar tensor.
Apply = Callable[
  [Sequence[tuple[tf.Tensor, tf.Variable]], tf.Tensor], tf.Operation
]


class AtomicCenter:
  """The center, its lock, and the copies that one worker pulls.

  Attributes:
    pulled_step: int64 local variable, the global_step of the last pull.
  """

  def __init__(
    self,
    copies: local_copies.LocalCopies,
    global_step: tf.Variable,
    keep_shards: Sequence[tf.Variable] = (),
    keep_whole: Sequence[tf.Variable] = (),
    max_staleness: int | None = None,
    mark_done: MarkDone = list,
  ) -> None:
    """
    Args:
      global_step: int64 scalar variable.
      keep_shards: beside the shards; on every pull each takes its shard's
        value, as the worker receives it, under the lock.
      keep_whole: beside the copies; likewise, unlocked.
      max_staleness: a staler push is dropped and not counted.
      mark_done: see Strategy.mark_done.
    """
    self._copies = copies
    self._global_step = global_step
    self._keep_shards = keep_shards
    self._keep_whole = keep_whole
    self._max_staleness = max_staleness
    self._mark_done = mark_done
    self.pulled_step = copies.make_counter(0, 'pulled_step')
    with tf.device(global_step.device):
      self._pulled_step = tf.identity(self.pulled_step.read_value())
    self._lock = ps_lock.Lock(global_step.device, 'center_lock')

  def _run_locked(
    self, build: Callable[[], tuple[list[tf.Tensor], list[tf.Tensor]]]
  ) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
    """Builds what is done under the lock.

    Args:
      build: callable -> (scalars, values), lists of tensors; values are on the
        ps of their shards.

    Returns:
      (scalars, values); the scalars come once the lock is free.
    """
    values = []

    def build_scalars() -> list[tf.Tensor]:
      scalars, read = build()
      values.extend(read)
      # The section copies all that it returns to ps 0 before it unlocks: the
      # values read on another ps bypass it and go straight to the worker.
      with tf.control_dependencies(values):
        return [tf.identity(scalar) for scalar in scalars]

    with tf.device(self._global_step.device):
      return self._lock.execute(build_scalars), values

  def is_too_stale(self, tensors: Sequence[tf.Tensor]) -> tf.Tensor:
    """Asks, before a push, whether it would be dropped, without the lock.

    Args:
      tensors: known before the ps is asked.

    Returns:
      Bool scalar tensor on the worker's CPU. What is too stale stays so; what
      is not may be by the time it is pushed.
    """
    with tf.device(self._global_step.device):
      now = strategy.read_after(self._global_step, tensors)
      is_late = now - self._pulled_step > self._max_staleness
    with tf.device(self.pulled_step.device):
      return tf.identity(is_late)

  def exchange(
    self,
    tensors: Sequence[tf.Tensor],
    apply: Apply,
    unless: tf.Tensor | None = None,
  ) -> tuple[tf.Tensor, tf.Tensor]:
    """Pushes, and pulls before any other worker pushes.

    Args:
      tensors: like the copies: gradients or changes.
      unless: bool scalar tensor, from `is_too_stale`: no tensors are sent, only
        rows; None if they always are.

    Returns:
      (new_step, staleness): int64 scalar tensors, once the copies hold the new
      center. new_step is global_step after the push.
    """
    pairs = self._copies.to_shards(tensors, unless)

    def push_and_read() -> tuple[list[tf.Tensor], list[tf.Tensor]]:
      with tf.device(self._global_step.device):
        staleness = self._global_step.read_value() - self._pulled_step
      applied = self._apply(apply, pairs, staleness)
      # A rule may ignore the staleness, which must be read before the count.
      with tf.control_dependencies([applied, staleness]):
        count = self._global_step.assign_add(applied, read_value=False)
      new_step, parts = self._read([count])
      return [staleness, new_step], parts

    (staleness, new_step), parts = self._run_locked(push_and_read)
    with tf.device(self._global_step.device):
      done = self._mark_done([new_step.op])
      with tf.control_dependencies(done):
        new_step = tf.identity(new_step)
    with tf.control_dependencies([self._take(new_step, parts, [staleness])]):
      return tf.identity(new_step), tf.identity(staleness)

  def _apply(
    self,
    apply: Apply,
    pairs: Sequence[tuple[tf.Tensor, tf.Variable]],
    staleness: tf.Tensor,
  ) -> tf.Tensor:
    """Returns 1 once the push is applied, 0 if it was dropped."""

    def count(number: int, ops: Sequence[tf.Operation]) -> tf.Tensor:
      with tf.control_dependencies(ops):
        return tf.constant(number, tf.int64)

    if self._max_staleness is None:
      return count(1, [apply(pairs, staleness)])
    return tf.cond(
      staleness <= self._max_staleness,
      lambda: count(1, [apply(pairs, staleness)]),
      lambda: count(0, []),
    )

  def _read(
    self, ops: Sequence[tf.Operation]
  ) -> tuple[tf.Tensor, list[tf.Tensor]]:
    """Returns (global_step, shards' values), under the lock, after `ops`."""
    kept = []
    with tf.control_dependencies(ops):
      parts = self._copies.read_shards()
    if self._keep_shards:
      as_pulled = self._copies.round_as_sent(parts)
      for variable, part in zip(self._keep_shards, as_pulled, strict=True):
        with tf.device(variable.device):
          kept.append(variable.assign(part, read_value=False))
    return strategy.read_after(self._global_step, [*ops, *kept]), parts

  def _take(
    self,
    new_step: tf.Tensor,
    parts: Sequence[tf.Tensor],
    ops: Sequence[tf.Tensor],
  ) -> tf.Operation:
    """Returns the op that stores what was read in this worker's variables."""
    whole = self._copies.from_shards(parts)
    with tf.control_dependencies([*ops, *whole]):
      taken = [self._copies.assign(whole), self.pulled_step.assign(new_step)]
      if self._keep_whole:
        taken.append(variable_lists.assign_all(self._keep_whole, whole))
      return tf.group(*taken)

  def hook(self) -> tf.train.SessionRunHook:
    """Returns the hook that pulls once a session has been created."""

    def read() -> tuple[list[tf.Tensor], list[tf.Tensor]]:
      new_step, parts = self._read([])
      return [new_step], parts

    (new_step,), parts = self._run_locked(read)
    pull = self._take(new_step, parts, [])
    graph_record.current().pulls.append(pull)
    return _PullHook(pull)


class _PullHook(tf.train.SessionRunHook):
  def __init__(self, pull: tf.Operation) -> None:
    self._pull = pull

  def after_create_session(
    self, session: tf.Session, coord: tf.train.Coordinator
  ) -> None:
    session.run(self._pull)


class GradientRule(strategy.Strategy):
  """Asynchronous SGD whose pushes are judged by their staleness, exactly.

  Worker i:

    pull x~ at clock c_i;  g = g^i(x~);  s = c - c_i
    x~ <- Opt(x~, g);  c += 1

  x~ is the center, c its clock (global_step), s the staleness: the updates by
  others between the pull and the push, read and used under the lock. A rule
  says what s changes: a gradient above its `max_staleness` is dropped, and the
  rate takes its `compute_rate_factor`.

  The center and slots live on the ps, the pulled copy on the worker.

  Attributes of a rule:
    name: of its file; its ops are in this name scope.
    asks_first: whether a worker asks for c before it pushes, and sends no
      gradient that would be dropped.
  """

  name = ''
  asks_first = False
  needs_warmup = True
  takes_tables = True

  def __init__(
    self, cluster: Cluster, max_staleness: int | None = None
  ) -> None:
    super().__init__(cluster)
    self.max_staleness = max_staleness
    self._copies = local_copies.LocalCopies(cluster)

  def compute_rate_factor(self, staleness: tf.Tensor) -> tf.Tensor | None:
    """Returns by what the rate of a push is multiplied; None for 1.

    Args:
      staleness: int64 scalar tensor.
    """
    del staleness
    return None

  def scope(self) -> contextlib.AbstractContextManager[None]:
    return self._copies.scope()

  def minimize(
    self,
    loss: tf.Tensor,
    make_optimizer: strategy.MakeOptimizer,
    global_step: tf.Variable,
  ) -> strategy.Update:
    copies = self._copies
    with tf.name_scope(self.name):
      self._center = AtomicCenter(
        copies,
        global_step,
        max_staleness=self.max_staleness,
        mark_done=self.mark_done,
      )
      optimizer = make_optimizer()
      gradients = copies.compute_gradients(optimizer, loss)
      unless = self._center.is_too_stale(gradients) if self.asks_first else None

      def apply(
        pairs: Sequence[tuple[tf.Tensor, tf.Variable]], staleness: tf.Tensor
      ) -> tf.Operation:
        factor = self.compute_rate_factor(staleness)
        if factor is None:
          return optimizer.apply_gradients(pairs)
        return make_optimizer(rate_factor=factor).apply_gradients(pairs)

      new_step, staleness = self._center.exchange(gradients, apply, unless)
      pulled, pushed = copies.count_bytes()
      if unless is not None:
        pushed -= copies.count_bytes_if(unless)
      return strategy.Update(new_step, staleness, pulled, pushed)

  def hooks(self, stop: StopRequest) -> list[tf.train.SessionRunHook]:
    return [self._center.hook()]
