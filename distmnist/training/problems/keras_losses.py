"""A loss in the words of Keras: the mean over a batch that `model.fit` has."""

from __future__ import annotations

import inspect
import math
import warnings
from typing import TYPE_CHECKING, Any

import tensorflow.compat.v1 as tf

from distmnist import tf_internals

if TYPE_CHECKING:
  import keras


def compute(
  given: Any,
  y: Any,
  outputs: Any,
  loss_weight: Any = None,
  weights: tf.Tensor | None = None,
) -> tuple[tf.Tensor, tf.Tensor | None]:
  """Returns the mean loss of a batch, and what it is divided by.

  It is Keras's own mean: what a mask or a loss leaves out does not count, and
  outputs of less than float32 are widened first. With weights it is the sum of
  weight * loss, divided by the number of what counts and not by the sum of the
  weights, unless the loss has reduction='mean_with_sample_weight'.

  Args:
    given: a name, a keras.losses.Loss or a function of (y, outputs); or a nest
      of one.
    y, outputs: tensors [n, ...], or nests of one.
    loss_weight: what `compile` takes as loss_weights.
    weights: float32 tensor [n], those of the examples.

  Returns:
    (mean, divisor): a float scalar, and a float32 scalar by which the mean over
    several batches is to weigh each: the sum of the mask, or of the weights
    where the loss divides by that, per number in the mask; None if all batches
    of a size count alike.

  Raises:
    ValueError: there are several outputs, the loss is a sum over the batch, or
      Keras warns that it does not fit the outputs.
  """
  given = _take_only(given, 'loss')
  y, outputs = pair(y, outputs)
  with warnings.catch_warnings():
    # Of one output with categorical_crossentropy, say, whose loss is always 0.
    warnings.simplefilter('error', SyntaxWarning)
    try:
      loss = _make(given, y, outputs)
      if weights is not None:
        axes = max(1, outputs.shape.ndims - 1)
        loss = _fix_rank(loss, axes)
        weights = tf.reshape(weights, [-1] + [1] * (axes - 1))
      loss, values = _keep_values(loss)
      mean = tf.convert_to_tensor(loss(y, outputs, weights))
    except SyntaxWarning as warning:
      raise ValueError(str(warning)) from warning
  if loss_weight is not None:
    mean *= float(_take_only(loss_weight, 'loss weight'))
  masks = [tf_internals.get_mask(of) for of in (outputs, *values)]
  counted = [tf.cast(m, tf.float32) for m in masks if m is not None]
  if weights is not None and loss.reduction == 'mean_with_sample_weight':
    counted.append(weights)
  if not counted:
    return mean, None
  return mean, tf.stop_gradient(tf.reduce_mean(math.prod(counted)))


def pair(y: Any, outputs: Any) -> tuple[tf.Tensor, tf.Tensor]:
  """Returns (y, outputs), tensors: y as [n, 1] if the outputs are, or as [n].

  Otherwise a loss would compare each label with the output of every example.

  Args:
    y, outputs: tensors [n, ...], or nests of one.

  Raises:
    ValueError: there are several.
  """
  outputs = _take_only(outputs, 'output of the model')
  y = _take_only(y, 'y')
  if y.shape.ndims == outputs.shape.ndims - 1 and outputs.shape[-1] == 1:
    y = tf.expand_dims(y, -1)
  elif y.shape.ndims == 2 and outputs.shape.ndims == 1 and y.shape[-1] == 1:
    y = tf.squeeze(y, -1)
  return y, outputs


def choose(
  y: tf.Tensor, outputs: tf.Tensor, binary: str, sparse: str, categorical: str
) -> str:
  """Returns which of three Keras means by 'accuracy' for these shapes."""
  if outputs.shape[-1] == 1 or outputs.shape.ndims == 1:
    return binary
  if y.shape.ndims == outputs.shape.ndims and y.shape[-1] != 1:
    return categorical
  return sparse


def _take_only(nest: Any, what: str) -> Any:
  leaves = tf.nest.flatten(nest)
  if len(leaves) != 1:
    raise ValueError(
      f'expected one {what}, not {len(leaves)}, for what Keras computes; '
      'for several write functions loss(y, outputs) and metrics(y, outputs) in '
      'a file with make_model(), for distmnist.run or --problem'
    )
  return leaves[0]


def _fix_rank(loss: keras.losses.Loss, ndims: int) -> keras.losses.Loss:
  """Returns the loss with values of this rank, of the same mean.

  So Keras multiplies them by weights [n, 1, ...] of that rank, each example by
  its own; of other ranks it could take [n] for the last axis.
  """
  compute_values = loss.call

  def call(y_true: tf.Tensor, y_pred: tf.Tensor) -> tf.Tensor:
    values = tf.convert_to_tensor(compute_values(y_true, y_pred))
    found = values.shape.ndims
    if found > ndims:
      return tf.reduce_mean(values, [*range(ndims, found)])
    for _ in range(found, ndims if found else 0):
      values = tf.expand_dims(values, -1)
    return values

  loss = _copy(loss)
  loss.call = call
  return loss


def _keep_values(
  loss: keras.losses.Loss,
) -> tuple[keras.losses.Loss, list[tf.Tensor]]:
  """Returns (a copy of the loss, the list that gets the values it computes).

  Keras leaves the mask of `ignore_class` on these.
  """
  compute_values, kept = loss.call, []

  def call(y_true: tf.Tensor, y_pred: tf.Tensor) -> tf.Tensor:
    kept.append(compute_values(y_true, y_pred))
    return kept[-1]

  loss = _copy(loss)
  loss.call = call
  return loss, kept


def _copy(loss: keras.losses.Loss) -> keras.losses.Loss:
  """Returns a copy; copy.copy makes one of a configuration, which may lack."""
  found = object.__new__(type(loss))
  vars(found).update(vars(loss))
  return found


def _make(given: Any, y: tf.Tensor, outputs: tf.Tensor) -> keras.losses.Loss:
  """Returns the loss that `compile` means by it, a mean over a batch."""
  from keras import losses  # noqa: PLC0415  Only for Keras models.

  if isinstance(given, str) and given.lower() in ('crossentropy', 'ce'):
    kinds = ('binary', 'sparse_categorical', 'categorical')
    given = choose(y, outputs, *(f'{kind}_crossentropy' for kind in kinds))
  found: Any = losses.get(given)
  if inspect.isclass(found):
    found = found()
  if not isinstance(found, losses.Loss):
    function, found = found, losses.Loss(name='loss')
    found.call = function
  if found.reduction == 'sum':
    raise ValueError(
      "the loss has reduction='sum', a sum over a batch that would depend on "
      'how many workers there are: expected a mean, and a larger learning rate'
    )
  if found.reduction in (None, 'none'):
    found = _copy(found)
    found.reduction = 'sum_over_batch_size'
  return found
