"""tf.train.SyncReplicasOptimizer, with tokens that outlive a worker's death.

The accumulators, the mean of R gradients and its application are the
optimizer's. What is replaced, and why:

- Its token queue: all workers share it, so a fast worker could take the token
  of one that died while waiting, and contribute twice to an update; or with
  R < N the old tokens of a slow one, which make its own gradients late.
- Its way to push: a worker that died in mid-push would be in some accumulators
  twice once it is back (see contributions.py).
- Its local step on each worker: a token kept beside the global_step need not
  travel, and steps that follow each other in one session.run need not wait for
  it.
- Its hook (see round_hook.RoundHook), and its silence on whether a gradient
  came in time.
- Its mean of the gradients of rows (see sparse_sum.py), which `_MeanApplier`
  takes and applies together with the others.
- Its divisor, R, where workers have weights: these have an accumulator of their
  own, by whose mean the mean of the weighed gradients is divided.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import tensorflow.compat.v1 as tf

from distmnist.exchange.rounds import contributions, sync_round
from distmnist.tables import sparse_sum
from distmnist.transport import nonfinite, sums

if TYPE_CHECKING:
  from distmnist.cluster.cluster import Cluster
  from distmnist.cluster.stop_request import StopRequest
  from distmnist.exchange.center.center import Center
  from distmnist.exchange.rounds.state_means import StateMeans
  from distmnist.transport.strategy import MarkDone


class SyncReplicas:
  """The optimizer of a worker, and its round.

  Attributes:
    optimizer: applies the mean.
  """

  def __init__(
    self,
    cluster: Cluster,
    optimizer: tf.train.Optimizer,
    replicas_to_aggregate: int,
    global_step: tf.Variable,
  ) -> None:
    """
    Args:
      optimizer: applies the mean.
      replicas_to_aggregate: R.
      global_step: int64 scalar variable.
    """
    self._cluster = cluster
    self._replicas_to_aggregate = replicas_to_aggregate
    self._global_step = global_step
    self._token = sync_round.make_token(cluster, global_step)
    # Read once per step, before the gradients are computed.
    self._own_token = self._token.value()
    self.optimizer = optimizer

  def push_and_wait(
    self,
    center: Center,
    gradients: Sequence[tf.Tensor],
    mark_done: MarkDone,
    weight: tf.Tensor | None = None,
  ) -> tuple[tf.Tensor, tf.Tensor]:
    """Pushes gradients, and waits for the update.

    Args:
      gradients: like `center.views`, followed by those like
        `center.rows.views`.
      mark_done: see Strategy.mark_done.
      weight: float32 scalar tensor, by which the gradients are weighed, or
        None; see Strategy.weigh_by.

    Returns:
      (new_step, staleness): int64 scalar tensors, the global_step of the new
      token and the staleness; see sync_round.Round.push_and_wait.
    """
    pairs = center.to_shards(gradients)
    dense, sparse = (
      [p for p in pairs if isinstance(p[0], tf.IndexedSlices) == is_sparse]
      for is_sparse in (False, True)
    )
    of_rows = [(_make_sum(v), v.device) for _, v in sparse]
    accumulators = [(_find_accumulator(v), v.device) for _, v in dense]
    of_weight = []
    if weight is not None:
      of_weight, pushed = contributions.make_weights(
        weight, [self._global_step.device]
      )
      pairs += pushed
    self._round = sync_round.Round(
      self._cluster,
      self._replicas_to_aggregate,
      self._global_step,
      accumulators + of_rows + of_weight,
      self._token,
      parts=center.find_units()
      + [[len(dense) + i] for i in range(len(sparse) + len(of_weight))],
    )
    applier = _MeanApplier(
      self.optimizer,
      self._replicas_to_aggregate,
      self._cluster.task_index,
      [(*total, v) for total, (_, v) in zip(of_rows, sparse, strict=True)],
      self._round.state_means,
      of_weight,
    )
    optimizer = tf.train.SyncReplicasOptimizer(
      applier, self._replicas_to_aggregate, self._cluster.num_workers
    )
    summed = [(_widen(gradient, v), v) for gradient, v in dense]
    instead = functools.partial(_make_unless_local, self._token)
    with tf.variable_creator_scope(instead):
      # It needs at least one variable; one without a gradient is left alone.
      optimizer.apply_gradients(
        summed or [(None, sparse[0][1])], self._global_step
      )
    runner = optimizer.get_chief_queue_runner()
    _, its_tokens = runner.enqueue_ops[0].inputs
    self._round.end_update([its_tokens])  # They come after the update.
    return self._round.push_and_wait(pairs, self._own_token, mark_done)

  def hook(self, stop: StopRequest) -> tf.train.SessionRunHook:
    """Returns the hook of the round; `stop` is a stop_request.StopRequest."""
    return self._round.hook(stop)


class _MeanApplier(tf.train.Optimizer):
  """An optimizer that applies a round's means, and all that goes with them."""

  def __init__(
    self,
    optimizer: tf.train.Optimizer,
    replicas_to_aggregate: int,
    worker: int,
    of_rows: Sequence[tuple[sparse_sum.SparseSum, str, tf.Variable]],
    state: StateMeans,
    of_weight: Sequence[tuple[contributions.Accumulator, str]],
  ) -> None:
    """
    Args:
      optimizer: applies the means.
      replicas_to_aggregate: R.
      worker: the task_index.
      of_rows: (sparse_sum.SparseSum, its device, the shard of a table).
      state: of the model's own variables.
      of_weight: (contributions.Accumulator, its device), the one of the
        weights; empty if there are none.
    """
    super().__init__(use_locking=False, name='means')
    self._optimizer, self._worker = optimizer, worker
    self._replicas_to_aggregate = replicas_to_aggregate
    self._of_rows, self._state, self._of_weight = of_rows, state, of_weight

  def apply_gradients(
    self,
    grads_and_vars: Iterable[tuple[tf.Tensor | None, tf.Variable]],
    global_step: tf.Variable,
    name: str | None = None,
  ) -> tf.Operation:
    """Applies means, in the dtypes of their variables, and counts the update.

    Args:
      grads_and_vars: (mean in the dtype of sums, variable); None is no mean.
      global_step: int64 scalar variable.
      name: unused.
    """
    del name
    pairs, weight = [], None
    for accumulator, device in self._of_weight:
      with tf.device(device):
        weight = accumulator.take_grad(self._replicas_to_aggregate)
    for mean, variable in grads_and_vars:
      if mean is not None:
        with tf.device(variable.device):
          if weight is not None:
            mean = sums.divide(mean, weight)
          mean = tf.cast(mean, variable.dtype.base_dtype)
          mean = nonfinite.check_mean(mean, self._worker)
      pairs.append((mean, variable))
    for total, device, shard in self._of_rows:
      with tf.device(device):
        mean = total.take_grad(self._replicas_to_aggregate)
        if weight is not None:
          values = sums.divide(mean.values, weight)
          mean = tf.IndexedSlices(values, mean.indices, mean.dense_shape)
      pairs.append((mean, shard))
    if not self._of_rows and not self._state.accumulators:
      return self._optimizer.apply_gradients(pairs, global_step)
    applied = self._state.build_update([self._optimizer.apply_gradients(pairs)])
    with tf.control_dependencies(applied):
      return global_step.assign_add(1, read_value=False)


def _widen(gradient: tf.Tensor, variable: tf.Variable) -> tf.Tensor:
  with tf.device(variable.device):
    return sums.widen(gradient)


def _make_sum(variable: tf.Variable) -> sparse_sum.SparseSum:
  with tf.device(variable.device):
    return sparse_sum.SparseSum(variable, f'{variable.name}/grad_sum')


def _find_accumulator(variable: tf.Variable) -> contributions.Accumulator:
  """Returns the accumulator that the optimizer makes for a variable."""
  with tf.device(variable.device):
    return contributions.Accumulator(
      variable.dtype.base_dtype, variable.shape, f'{variable.name}/grad_accum'
    )


def _make_unless_local(
  instead: tf.Variable, create: Callable[..., tf.Variable], **kwargs: Any
) -> tf.Variable:
  """A variable creator that returns `instead` for a local variable."""
  is_local = tf.GraphKeys.LOCAL_VARIABLES in (kwargs['collections'] or ())
  return instead if is_local else create(**kwargs)
