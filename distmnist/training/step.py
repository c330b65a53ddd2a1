"""The graph of a training step: the model's loss, under an update rule."""

import contextlib
from typing import NamedTuple

import tensorflow.compat.v1 as tf

from distmnist.data import metric_total, seeds
from distmnist.exchange import model_state, sharding
from distmnist.exchange import strategy as strategy_lib
from distmnist.exchange.tables import key_shard
from distmnist.nn import batch_norm, gradient_accumulation, optimizers
from distmnist.training import averages
from distmnist.training.batches import dispatcher
from distmnist.training.problems import table_checks


class Step(NamedTuple):
  """The graph of a training step.

  Attributes:
    update: strategy.Update; its train_op stands for UPDATE_OPS as well.
    global_step: int64 scalar variable.
    loss: float32 scalar tensor, the mean over the batch.
    metrics: {name: float32 scalar tensor}, means over the batch.
    learning_rate: float32 scalar tensor.
    center: list of tf.Variable, the model's, without the optimizer's.
    averages: list of tf.Variable, of --ema_decay; empty without it.
    table: dispatcher.Table, or None.
  """

  update: strategy_lib.Update
  global_step: tf.Variable
  loss: tf.Tensor
  metrics: dict
  learning_rate: tf.Tensor
  center: list
  averages: list
  table: dispatcher.Table | None


def build_step(
  cluster,
  strategy,
  problem,
  slices,
  epochs_per_update=1.0,
  dealing=None,
):
  """Builds the Step of a worker.

  Args:
    cluster: cluster.Cluster.
    strategy: strategy.Strategy.
    problem: problem.Problem.
    slices: list of input_pipeline.Slice, the batch; one unless gradients are
      accumulated.
    epochs_per_update: see optimizers.from_flags.
    dealing: batch_table.Dealing, how batches are dealt, or None.
  """
  table = None
  ps_strategy = sharding.ps_strategy_from_flags(cluster.num_ps)
  with tf.device(cluster.device_setter(ps_strategy)):
    global_step = tf.train.get_or_create_global_step()
    state = model_state.ModelState(cluster, strategy.is_lock_step)
    state.activate()
    sharded = sharding.sharded_by_flags(
      cluster.num_ps, strategy.max_shard_bytes
    )
    with sharded, strategy.scope(), _as_resources():
      loss, metrics = build_slices(cluster, problem, slices, state)
    table_checks.check(strategy)
    center = [v for v in tf.global_variables() if v is not global_step]
    average = averages.make(center, global_step)
    if dealing:
      table = dispatcher.Table(global_step, dealing, cluster.task_index)
      if not dealing.is_lock_step:
        strategy.build_mark = table.build_mark
    make_optimizer, learning_rate = optimizers.from_flags(
      global_step, cluster.num_workers, epochs_per_update
    )
    update = strategy.minimize(loss, make_optimizer, global_step)
    key_shard.connect_all()
    state.build_updates()
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
  )


def _check_is_marked(strategy, table, average):
  rule = f'{type(strategy).__name__}.minimize does not call mark_done'
  if table and not table.is_marked:
    raise NotImplementedError(
      f'{rule}: which batches were pushed would not be known'
    )
  if average and not average.is_moved:
    raise NotImplementedError(f'{rule}: the moving averages would not move')


def build_slices(cluster, problem, slices, state):
  """Builds the model once a slice; each begins when the one before has ended.

  Args:
    cluster, problem, slices: see `build_step`.
    state: model_state.ModelState.

  Returns:
    (loss, metrics), of the whole batch; see Step.
  """
  if len(slices) == 1:
    return build_towers(cluster, problem, slices[0].batch)
  losses, means = [], []
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
      loss, mean = build_towers(cluster, problem, part.batch)
    losses.append(loss)
    means.append(mean)
  gates = [part.gate for part in slices]
  return gradient_accumulation.build_mean(losses, gates), _average_each(means)


def build_towers(cluster, problem, batch):
  """Builds the model once a device; each takes its part of the batch.

  All read the same variables, which are pulled once, and the gradient of the
  mean of their losses is pushed once.

  Returns:
    (loss, metrics), of the whole batch; see Step.
  """
  devices, losses, means = cluster.tower_devices, [], []
  parts = [batch]
  if len(devices) > 1:
    with tf.device(cluster.cpu_device):
      parts = _cut(batch, len(devices))
  for i, device in enumerate(devices):
    with contextlib.ExitStack() as stack:
      if i:
        # The variables are there. Under a device of its own the first tower
        # would have them there, and not on the ps.
        stack.enter_context(tf.device(device))
        stack.enter_context(tf.name_scope(f'tower_{i}'))
        stack.enter_context(
          tf.variable_scope(tf.get_variable_scope(), reuse=True)
        )
      x, y = parts[i]
      outputs, penalty = build_outputs(problem, x)
      loss, _ = problem.loss(y, outputs)
      take_losses()  # Those of loss() are in what it gave.
      losses.append(loss + penalty if penalty is not None else loss)
      found = problem.metrics(y, outputs)
      means.append({name: _take_mean(found[name]) for name in found})
  if len(devices) == 1:
    return losses[0], means[0]
  return _average(losses), _average_each(means)


@contextlib.contextmanager
def _as_resources():
  """Has each variable be a resource, whatever `use_resource` says.

  A variable of the older kind cannot be read from another task at a moment that
  is known, nor be a worker's copy.
  """

  def get(getter, *args, **kwargs):
    return getter(*args, **{**kwargs, 'use_resource': True})

  with tf.variable_scope(tf.get_variable_scope(), custom_getter=get):
    yield


def build_outputs(problem, x):
  """Builds the model for training.

  Returns:
    (outputs, penalty): the model's, and what regularizers and
    tf.losses.add_loss add to the loss, a float32 scalar, or None without any.
  """
  with tf.variable_scope(tf.get_variable_scope(), custom_getter=_penalise):
    outputs = problem.build(x, is_training=True)
  penalties = take_losses()
  if not penalties:
    return outputs, None
  return outputs, tf.add_n([tf.cast(p, tf.float32) for p in penalties])


def take_losses():
  """Returns the losses in the graph's collections, and empties these.

  So each counts once, also where loss() adds up what is in the collections.
  """
  taken = []
  for name in tf.GraphKeys.LOSSES, tf.GraphKeys.REGULARIZATION_LOSSES:
    taken += tf.get_collection(name)
    tf.get_default_graph().clear_collection(name)
  return taken


def _penalise(getter, name, *args, **kwargs):
  """Has a regularizer see what the model computes with.

  That has a gradient; the center's variable has none under any strategy.
  """
  regularizer = kwargs.pop('regularizer', None)
  given = getter(name, *args, **kwargs)
  if regularizer:
    tf.add_to_collection(tf.GraphKeys.REGULARIZATION_LOSSES, regularizer(given))
  return given


def _take_mean(metric):
  if isinstance(metric, metric_total.Total):
    return metric.value
  return tf.reduce_mean(metric)


def _average(tensors):
  return tf.add_n(tensors) / len(tensors)


def _average_each(means):
  """Returns {name: mean} of a list of {name: tensor}."""
  return {name: _average([mean[name] for mean in means]) for name in means[0]}


def _cut(batch, num_parts):
  """Returns the list of the parts of a nest of tensors [n, ...]."""
  cut = [tf.split(tensor, num_parts) for tensor in tf.nest.flatten(batch)]
  return [
    tf.nest.pack_sequence_as(batch, part) for part in zip(*cut, strict=True)
  ]
