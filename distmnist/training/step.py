"""The graph of a training step: the model's loss, under an update rule.

`build_step_of` has its parts in order. The loss of a batch is the mean over its
slices (--gradient_accumulation) and over the towers, one for each GPU. Where it
is divided by what counts in a batch, as by a mask, that mean and the one over
workers in lock-step are weighed by this (problem.BatchLoss.weight).
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import tensorflow.compat.v1 as tf
from absl import flags

from distmnist.data import initial_values, metric_total, seeds
from distmnist.data import split as split_lib
from distmnist.exchange.copies import local_copies
from distmnist.nn import (
  batch_norm,
  gradient_accumulation,
  optimizer_checks,
  optimizers,
  sparse_updates,
)
from distmnist.tables import first_rows, key_shard, sparse_table, tables_apart
from distmnist.training import averages, rule_checks, warm_start
from distmnist.training.batches import dispatcher
from distmnist.training.problems import table_checks, variable_checks
from distmnist.transport import model_state, sharding, sums
from distmnist.transport import strategy as strategy_lib

if TYPE_CHECKING:
  from distmnist.cluster import cluster as cluster_lib
  from distmnist.data import input_pipeline
  from distmnist.nn import groups as groups_lib
  from distmnist.training.batches import batch_table
  from distmnist.training.problems import problem as problem_lib
  from distmnist.transport import weight_averages

_SEED = flags.DEFINE_integer(
  'seed',
  0,
  'Seed of the initial weights and of the order of the images.',
  lower_bound=0,
)


# Of a batch in which nothing counts. Beside others it is lost in the sum; where
# nothing counts in any, regularizers still move the weights, as in Keras.
_LEAST_WEIGHT = 2.0**-40


def seed_from_flags() -> int:
  """Returns --seed."""
  return _SEED.value


class Step(NamedTuple):
  """The graph of a training step.

  Attributes:
    update: its train_op includes UPDATE_OPS.
    global_step: int64 scalar variable.
    loss: float32 scalar tensor, the mean over the batch.
    metrics: {name: float32 scalar tensor}, means over the batch; none of them
      is a `loss`.
    learning_rate: float32 scalar tensor.
    center: the model's, without the optimizer's.
    averages: from --ema_decay; empty without it.
    own_local: the model's local ones, whose values are kept when a session is
      lost; those of the rule are set back.
    moved_by: {whole name: str}, see optimizers.describe_variables.
  """

  update: strategy_lib.Update
  global_step: tf.Variable
  loss: tf.Tensor
  metrics: dict[str, tf.Tensor]
  learning_rate: tf.Tensor
  center: list[tf.Variable]
  averages: list[tf.Variable]
  table: dispatcher.Table | None
  own_local: list[tf.Variable]
  moved_by: dict[str, str]


def make_global_step(
  cluster: cluster_lib.Cluster,
) -> Callable[[tf.Operation], str] | str:
  """Makes the global step, which is the first variable of a training's graph.

  What is built before the loss, such as `preprocess`, may use it.

  Returns:
    What tf.device takes, as it places the variables that follow.
  """
  ps_strategy = sharding.ps_strategy_from_flags(cluster.num_ps)
  placement = cluster.device_setter(ps_strategy)
  with tf.device(placement):
    tf.train.get_or_create_global_step()
  return placement


def build_step(
  cluster: cluster_lib.Cluster,
  strategy: strategy_lib.Strategy,
  problem: problem_lib.Problem,
  slices: Sequence[input_pipeline.Slice],
  epochs_per_update: float = 1.0,
  dealing: batch_table.Dealing | None = None,
  placement: Callable[[tf.Operation], str] | str | None = None,
) -> Step:
  """Builds the Step of a worker.

  Args:
    slices: the batch; one unless gradients are accumulated.
    epochs_per_update: see optimizers.from_flags.
    dealing: how batches are dealt.
    placement: what `make_global_step` gave, if it was called before.
  """

  def build_loss(
    state: model_state.ModelState,
  ) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
    loss, metrics, weight = _build_slices(cluster, problem, slices, state)
    strategy.weigh_by(weight)
    return loss, metrics

  return build_step_of(
    cluster,
    strategy,
    build_loss,
    epochs_per_update,
    dealing,
    len(slices) * len(cluster.tower_devices),
    placement,
    problem.learning_rate,
    problem.groups,
  )


def build_step_of(
  cluster: cluster_lib.Cluster,
  strategy: strategy_lib.Strategy,
  build_loss: Callable[
    [model_state.ModelState], tuple[tf.Tensor, dict[str, tf.Tensor]]
  ],
  epochs_per_update: float = 1.0,
  dealing: batch_table.Dealing | None = None,
  batches_per_loss: int = 1,
  placement: Callable[[tf.Operation], str] | str | None = None,
  build_rate: Callable[[tf.Tensor, tf.Tensor], tf.Tensor | None] | None = None,
  groups: Sequence[groups_lib.Group] = (),
) -> Step:
  """Builds the Step of a worker around any function that builds its loss.

  Args:
    cluster, strategy, epochs_per_update, dealing, placement: see `build_step`.
    build_loss: callable(model_state.ModelState) -> (loss, metrics), see Step;
      variables that it makes with tf.get_variable form the center.
    batches_per_loss: the batches of --batch_size that it is the mean of.
    build_rate, groups: see optimizers.from_flags.

  Raises:
    cli.UsageError: the strategy cannot train one of the variables, or its
      methods return something else than they should.
  """
  table, noted = None, variable_checks.Noted('build_loss()')
  with tf.device(placement or make_global_step(cluster)):
    global_step = tf.train.get_global_step()
    state = model_state.ModelState(cluster, strategy.is_lock_step)
    state.activate()
    before = tf.local_variables()
    with _open_center(cluster, strategy), noted.scope():
      loss, metrics = build_loss(state)
      of_rule = local_copies.get_all()
      of_rule += before + state.local_variables
      own_local = [
        v
        for v in tf.local_variables()
        if not any(v is other for other in of_rule)
      ]
    if strategy.needs_ps:  # Else whatever is trainable is trained.
      noted.check_made(tf.trainable_variables())
    noted.check_trainable()
    table_checks.check(strategy, groups)
    optimizer_checks.check_variables(strategy, groups)
    center = [v for v in tf.global_variables() if v is not global_step]
    if cluster.is_chief:
      warm_start.give(center)
    average = averages.make(center, global_step)
    if dealing:
      table = dispatcher.Table(global_step, dealing, cluster.task_index)
      if not dealing.is_lock_step:
        strategy.mark_by(table.build_mark)
    make_optimizer, learning_rate = optimizers.from_flags(
      global_step,
      strategy.pushes_per_step * batches_per_loss,
      epochs_per_update,
      dealing.known_last_step if dealing else None,
      build_rate,
      groups,
    )
    slots = sparse_updates.RowSlots()
    update = strategy.minimize(loss, slots.watch(make_optimizer), global_step)
    rule_checks.check_update(strategy, update)
    make_apart = functools.partial(make_optimizer, is_apart=True)
    update = tables_apart.add_to(update, slots.watch(make_apart))
    key_shard.connect_all(slots.begin)
    if cluster.is_chief:
      first_rows.build(slots.begin, cluster.cpu_device, warm_start.is_wanted())
    state.build_updates()
    updates = tf.get_collection(tf.GraphKeys.UPDATE_OPS)
    strategy.hold_back([update.train_op, *updates])
    train_op = batch_norm.after_updates(update.train_op)
  _check_is_marked(strategy, table, average)
  return Step(
    update._replace(train_op=train_op),
    global_step,
    loss,
    metrics,
    learning_rate,
    center,
    average.variables if average else [],
    table,
    own_local,
    optimizers.describe_variables(strategy, groups),
  )


def _check_is_marked(
  strategy: strategy_lib.Strategy,
  table: dispatcher.Table | None,
  average: weight_averages.WeightAverages | None,
) -> None:
  rule = f'{type(strategy).__name__}.minimize does not call mark_done'
  if table and not table.is_marked:
    raise NotImplementedError(
      f'{rule}: which batches were pushed would not be known'
    )
  if average and not average.is_moved:
    raise NotImplementedError(f'{rule}: the moving averages would not move')


@contextlib.contextmanager
def _open_center(
  cluster: cluster_lib.Cluster, strategy: strategy_lib.Strategy
) -> Iterator[None]:
  """The scope in which a model gets its variables from the rule."""
  sharded = sharding.sharded_by_flags(cluster.num_ps, strategy.max_shard_bytes)
  with (
    sharded,
    rule_checks.check_scope(strategy, strategy.scope()),
    _open_variables(),
  ):
    yield


def _open_variables() -> contextlib.AbstractContextManager[tf.VariableScope]:
  """The scope in which a model's variables are resources and drawn by name.

  A variable of the older kind cannot be read from another task at a definite
  time, nor be a worker's copy.
  """

  def get(
    getter: Callable[..., tf.Variable], *args: Any, **kwargs: Any
  ) -> tf.Variable:
    kwargs['use_resource'] = True
    if sparse_table.TABLES in (kwargs.get('collections') or ()):
      return getter(*args, **kwargs)  # Its rows are: nn/embeddings.py.
    return initial_values.draw_by_name(getter, *args, **kwargs)

  return tf.variable_scope(tf.get_variable_scope(), custom_getter=get)


def _build_slices(
  cluster: cluster_lib.Cluster,
  problem: problem_lib.Problem,
  slices: Sequence[input_pipeline.Slice],
  state: model_state.ModelState,
) -> tuple[tf.Tensor, dict[str, tf.Tensor], tf.Tensor | None]:
  """Builds the model once per slice; each starts when the previous one ends.

  Args:
    cluster, problem, slices: see `build_step`.

  Returns:
    (loss, metrics, weight), of the whole batch; see Step and
    problem.BatchLoss.
  """
  if len(slices) == 1:
    return _build_towers(cluster, problem, slices[0].batch)
  losses, means, weights = [], [], []
  for i, part in enumerate(slices):
    seeds.set_place(part.place)
    if i:
      state.begin_slice()
      # Batch norm moves its averages in the order of the slices.
      updates = tf.get_collection(tf.GraphKeys.UPDATE_OPS)
      gradient_accumulation.wait(part.gate, updates)
    with (
      tf.name_scope(f'slice_{i}'),
      tf.variable_scope(tf.get_variable_scope(), reuse=i > 0),
    ):
      loss, mean, weight = _build_towers(cluster, problem, part.batch)
    losses.append(loss)
    means.append(mean)
    weights.append(weight)
  gates = [part.gate for part in slices]
  if weights[0] is None:
    weights = []
  return (
    gradient_accumulation.build_mean(losses, gates, weights or None),
    _average_each(means),
    sums.build_mean(weights) if weights else None,
  )


def _build_towers(
  cluster: cluster_lib.Cluster,
  problem: problem_lib.Problem,
  batch: split_lib.Split,
) -> tuple[tf.Tensor, dict[str, tf.Tensor], tf.Tensor | None]:
  """Builds the model once per device; each takes its part of the batch.

  All read the same variables, which are pulled once; the gradient of their mean
  loss is pushed once.

  Returns:
    (loss, metrics, weight), as of _build_slices.
  """
  devices, losses, means, weights = cluster.tower_devices, [], [], []
  parts = [batch]
  if len(devices) > 1:
    with tf.device(cluster.cpu_device):
      parts = _cut(batch, len(devices))
  for i, device in enumerate(devices):
    with contextlib.ExitStack() as stack:
      if i:
        # The variables exist by now. The first tower has no tf.device: it would
        # put them on that device and not on the ps.
        stack.enter_context(tf.device(device))
        stack.enter_context(tf.name_scope(f'tower_{i}'))
        stack.enter_context(
          tf.variable_scope(tf.get_variable_scope(), reuse=True)
        )
      part = split_lib.Split(*parts[i])
      outputs, penalty = _build_outputs(problem, part.x)
      loss = problem.loss(part.y, outputs, part.weights)
      _take_losses()  # What loss() added to them is in its result.
      mean = loss.mean
      losses.append(mean + penalty if penalty is not None else mean)
      if loss.weight is not None:
        weights.append(tf.maximum(loss.weight, _LEAST_WEIGHT))
      found = problem.metrics(part.y, outputs, part.weights)
      # The step's `loss` is what it minimizes; one of metrics() is judged. Of
      # an AUC and the like a batch has none that could be averaged.
      means.append(
        {
          name: metric_total.build_mean(values, part.weights)
          for name, values in found.items()
          if name != 'loss' and getattr(values, 'is_mean', True)
        }
      )
  if len(devices) == 1:
    return losses[0], means[0], weights[0] if weights else None
  return (
    sums.build_mean(losses, weights or None),
    _average_each(means),
    sums.build_mean(weights) if weights else None,
  )


def _build_outputs(
  problem: problem_lib.Problem, x: Any
) -> tuple[Any, tf.Tensor | None]:
  """Builds the model for training.

  Returns:
    (outputs, penalty): the model's outputs, and what regularizers and
    tf.losses.add_loss add to the loss, a float32 scalar, or None without any.
  """
  with tf.variable_scope(tf.get_variable_scope(), custom_getter=_penalise):
    outputs = problem.build(x, is_training=True)
  penalties = _take_losses()
  if not penalties:
    return outputs, None
  return outputs, sums.add_up([tf.cast(p, tf.float32) for p in penalties])


def _take_losses() -> list[tf.Tensor]:
  """Returns the losses in the graph's collections, and empties them.

  So each counts once, even if loss() adds up what the collections hold.
  """
  taken = []
  for name in tf.GraphKeys.LOSSES, tf.GraphKeys.REGULARIZATION_LOSSES:
    taken += tf.get_collection(name)
    tf.get_default_graph().clear_collection(name)
  return taken


def _penalise(
  getter: Callable[..., tf.Tensor | tf.Variable],
  name: str,
  *args: Any,
  **kwargs: Any,
) -> tf.Tensor | tf.Variable:
  """Applies a regularizer to the value that the model computes with.

  That value has a gradient; the center's variable has none under any strategy.
  """
  regularizer = kwargs.pop('regularizer', None)
  given = getter(name, *args, **kwargs)
  if regularizer:
    tf.add_to_collection(tf.GraphKeys.REGULARIZATION_LOSSES, regularizer(given))
  return given


def _average_each(
  means: Sequence[dict[str, tf.Tensor]],
) -> dict[str, tf.Tensor]:
  """Returns {name: mean} of a list of {name: tensor}."""
  return {
    name: sums.build_mean([mean[name] for mean in means]) for name in means[0]
  }


def _cut(batch: split_lib.Split, num_parts: int) -> list[split_lib.Split]:
  """Returns the list of the parts of a nest of tensors [n, ...]."""
  cut = [tf.split(tensor, num_parts) for tensor in tf.nest.flatten(batch)]
  return [
    tf.nest.pack_sequence_as(batch, part) for part in zip(*cut, strict=True)
  ]
