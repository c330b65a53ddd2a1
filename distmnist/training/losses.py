"""The loss of a batch: its slices, towers, penalties, and their means."""

import contextlib

import tensorflow.compat.v1 as tf

from distmnist.data import metric_total, seeds
from distmnist.nn import gradient_accumulation


def build_slices(cluster, problem, slices, state):
  """Builds the model once per slice; each starts when the previous one ends.

  Args:
    cluster, problem, slices: see step.build_step.
    state: model_state.ModelState.

  Returns:
    (loss, metrics), of the whole batch; see step.Step.
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
  """Builds the model once per device; each takes its part of the batch.

  All read the same variables, which are pulled once; the gradient of their mean
  loss is pushed once.

  Returns:
    (loss, metrics), of the whole batch; see step.Step.
  """
  devices, losses, means = cluster.tower_devices, [], []
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
      x, y = parts[i]
      outputs, penalty = build_outputs(problem, x)
      loss, _ = problem.loss(y, outputs)
      take_losses()  # What loss() added to them is in its result.
      losses.append(loss + penalty if penalty is not None else loss)
      found = problem.metrics(y, outputs)
      means.append({name: _take_mean(found[name]) for name in found})
  if len(devices) == 1:
    return losses[0], means[0]
  return _average(losses), _average_each(means)


def build_outputs(problem, x):
  """Builds the model for training.

  Returns:
    (outputs, penalty): the model's outputs, and what regularizers and
    tf.losses.add_loss add to the loss, a float32 scalar, or None without any.
  """
  with tf.variable_scope(tf.get_variable_scope(), custom_getter=_penalise):
    outputs = problem.build(x, is_training=True)
  penalties = take_losses()
  if not penalties:
    return outputs, None
  return outputs, tf.add_n([tf.cast(p, tf.float32) for p in penalties])


def take_losses():
  """Returns the losses in the graph's collections, and empties them.

  So each counts once, even if loss() adds up what the collections hold.
  """
  taken = []
  for name in tf.GraphKeys.LOSSES, tf.GraphKeys.REGULARIZATION_LOSSES:
    taken += tf.get_collection(name)
    tf.get_default_graph().clear_collection(name)
  return taken


def _penalise(getter, name, *args, **kwargs):
  """Applies a regularizer to the value that the model computes with.

  That value has a gradient; the center's variable has none under any strategy.
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
