"""Metrics of Keras in a graph, whose variables are sums over the batches."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow.compat.v1 as tf

from distmnist import runtime, tf_internals
from distmnist.data import metric_total
from distmnist.training.problems import keras_losses

if TYPE_CHECKING:
  import keras


def make(
  given: Any, y: tf.Tensor, outputs: tf.Tensor
) -> tuple[str, keras.metrics.Metric]:
  """Returns (name, keras.metrics.Metric) for a name, object or function.

  To be called eagerly.

  Args:
    given: a name, a keras.metrics.Metric, its class, or a function of (y,
      outputs).
    y, outputs: tensors [n, ...] of a graph.

  Raises:
    ValueError: Keras does not know it, or its variables are no sums.
  """
  from keras import metrics  # noqa: PLC0415  Only for Keras models.

  if isinstance(given, str) and given.lower() in ('accuracy', 'acc'):
    kinds = 'Binary', 'SparseCategorical', 'Categorical'
    kind = keras_losses.choose(y, outputs, *kinds)
    return given, getattr(metrics, f'{kind}Accuracy')()
  metric: Any = metrics.get(given)
  if inspect.isclass(metric):
    metric = metric()
  if not isinstance(metric, metrics.Metric):
    metric = metrics.MeanMetricWrapper(metric, name=metric.__name__)
  if not tf_internals.is_built(metric):
    # It makes its variables at its first batch, which no graph allows.
    metric.update_state(*(np.zeros([1, *t.shape[1:]]) for t in (y, outputs)))
  metric.reset_state()
  if not type(metric).__module__.startswith('keras.'):
    _check_adds_up(metric, y, outputs)
  return given if isinstance(given, str) else metric.name, metric


def _check_adds_up(
  metric: keras.metrics.Metric, y: tf.Tensor, outputs: tf.Tensor
) -> None:
  """Raises ValueError if what a batch adds depends on those before it.

  It is tried on one example, labels of 0 and outputs of 1.
  """
  batch = [
    np.full([1, *(n or 1 for n in t.shape[1:])], value, t.dtype.as_numpy_dtype)
    for t, value in ((y, 0), (outputs, 1))
  ]
  first, added = [v.numpy() for v in metric.variables], []
  with contextlib.suppress(TypeError, ValueError, tf.errors.OpError):
    for start in 0, 1, -1:
      before = [value + np.asarray(start, value.dtype) for value in first]
      after = metric.stateless_update_state(before, *batch)
      added.append([*map(np.subtract, after, before)])
  for others in added[1:]:
    if not all(map(np.allclose, added[0], others)):
      raise ValueError(
        f'the metric {metric.name!r} ({type(metric).__name__}) has variables '
        'that are no sums, such as a maximum: expected only sums over the '
        'examples, as parts of the data are counted apart and added up'
      )


def count(
  metric: keras.metrics.Metric,
  y: tf.Tensor,
  outputs: tf.Tensor,
  weights: tf.Tensor | None = None,
) -> metric_total.Total:
  """Returns the metric_total.Total of a batch.

  Args:
    metric: made by `make`.
    y, outputs: tensors [n, ...].
    weights: tensor [n], those of the examples; None if all count the same.
  """
  from keras import metrics  # noqa: PLC0415  Only for Keras models.

  more = {} if weights is None else {'sample_weight': weights}
  mask = tf_internals.get_mask(outputs)
  if more and mask is not None:  # Keras multiplies them, whatever their ranks.
    shape = [-1] + [1] * (mask.shape.rank - 1)
    more['sample_weight'] = tf.reshape(weights, shape)
  first = [tf.constant(value) for value in _read_first(metric)]
  states = metric.stateless_update_state(first, y, outputs, **more)
  added = [state - start for state, start in zip(states, first, strict=True)]
  value = _find_result(metric, states)
  return metric_total.Total(
    added, tf.cast(value, tf.float32), isinstance(metric, metrics.Mean)
  )


def finish(metric: keras.metrics.Metric, sums: Iterable[np.ndarray]) -> float:
  """Returns a metric over all batches.

  Args:
    metric: made by `make`.
    sums: what all batches together add to its variables.
  """
  with runtime.eagerly():
    states = [*map(np.add, _read_first(metric), sums)]
    return float(_find_result(metric, states))


def _read_first(metric: keras.metrics.Metric) -> list[np.ndarray]:
  """Returns what the variables of a metric begin with, a list of arrays."""
  with runtime.eagerly():
    return [v.numpy() for v in metric.variables]


def _find_result(metric: keras.metrics.Metric, states: Sequence[Any]) -> Any:
  """Returns a metric from its variables' values; a scalar."""
  result = metric.stateless_result(states)
  # One that is a variable itself keeps its own value.
  for variable, state in zip(metric.variables, states, strict=True):
    if result is variable:
      return state
  return result
