"""A problem whose model, loss and metrics come from Keras.

A problem's module with `make_model() -> keras.Model` in place of `build` may
define the rest as in Keras: `loss` and each item of the list `metrics` is a
name ('mse'), an object from keras.losses or keras.metrics, or a function of
(y, outputs). What the model was compiled with need not be repeated. Where
`load` gives weights, they count in the loss and in `weighted_metrics`, but not
in `metrics`, as in Keras.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import tensorflow.compat.v1 as tf

from distmnist import runtime, tf_internals
from distmnist.common import cli
from distmnist.training.problems import (
  keras_checks,
  keras_losses,
  keras_metrics,
  keras_model,
  problem_module,
  user_calls,
)

if TYPE_CHECKING:
  import keras
  import numpy as np

# By the module. A process makes a model once.
_adapted: dict[Any, KerasModule] = {}


def adapt(named: str, module: Any, seed: int) -> KerasModule:
  """Returns the KerasModule of a module; its model is made at the first call.

  Must not be called while a graph is being built.

  Args:
    named: how the user names the module.
    module: the user's, with `make_model`.
    seed: for the initial weights.

  Raises:
    cli.UsageError: make_model() fails, or does not return a keras.Model that
      an update rule can train.
  """
  if module not in _adapted:
    import keras  # noqa: PLC0415  Only for Keras models.

    if keras.backend.backend() != 'tensorflow':
      raise cli.UsageError(
        f'Keras is set to {keras.backend.backend()}: expected '
        'KERAS_BACKEND=tensorflow'
      )

    with runtime.eagerly():
      keras.utils.set_random_seed(seed)
    model = user_calls.call(named, module, 'make_model')
    if not isinstance(model, keras.Model):
      raise cli.UsageError(
        f'--problem={named}: make_model() gave {problem_module.shorten(model)}:'
        ' expected a keras.Model'
      )
    try:
      keras_checks.check(model)
    except ValueError as error:
      raise cli.UsageError(f'--problem={named}: {error}') from error
    _adapted[module] = KerasModule(module, model)
  return _adapted[module]


class KerasModule:
  """A user's Keras module with the functions that problem.Problem calls.

  All other attributes are the module's own.
  """

  def __init__(self, module: Any, model: keras.Model) -> None:
    """
    Args:
      module: the user's.
      model: made eagerly.
    """
    self._module = module
    self._model = keras_model.KerasModel(model)
    self._compiled = tf_internals.get_compile_arguments(model)
    self._metrics: dict[str, tuple[keras.metrics.Metric, bool]] | None = None

  def __getattr__(self, name: str) -> Any:
    return getattr(self._module, name)

  @property
  def groups(self) -> Any:
    """What the module has, or a function of no arguments in its place.

    That of fit knows the variables by their places; see fitted.find_groups.
    """
    if hasattr(self._module, 'find_groups'):
      return lambda: self._module.find_groups(self._model.name_trained())
    return getattr(self._module, 'groups', None)

  def build(self, x: Any, is_training: bool) -> Any:
    return self._model.build(x, is_training)

  @property
  def large_variables(self) -> list[str]:
    """See keras_model.KerasModel."""
    return self._model.large_variables

  def save(self, values: Mapping[str, np.ndarray], path: str) -> None:
    self._model.save(values, path)

  def has_own_loss(self, y: Any, outputs: Any) -> bool:
    """Whether the file itself computes the loss, from y and outputs as given.

    Such a function knows of no weights.
    """
    given = getattr(self._module, 'loss', None)
    return given is not None and (
      self._is_own(given) or _takes_nests(given, y, outputs)
    )

  def loss(self, y: Any, outputs: Any, weights: tf.Tensor | None = None) -> Any:
    """Returns what keras_losses.compute or the file's own function gives.

    Args:
      y, outputs: nests of tensors [n, ...].
      weights: float32 tensor [n], those of the examples, or None; see
        keras_losses.compute.

    Raises:
      ValueError: there is none, or none that Keras knows for these outputs.
    """
    if self.has_own_loss(y, outputs):
      return self._module.loss(y, outputs)
    given, loss_weight = getattr(self._module, 'loss', None), None
    if given is None:
      given = self._compiled.get('loss')
      loss_weight = self._compiled.get('loss_weights')
    if given is None:
      raise ValueError(
        "there is no loss: expected loss = 'mse' or the like, a function "
        'loss(y, outputs), or a model that is compiled with one'
      )
    return keras_losses.compute(given, y, outputs, loss_weight, weights)

  def _is_own(self, given: Any) -> bool:
    """Whether it is a function that the user's file defines."""
    name = self._module.__name__
    return inspect.isfunction(given) and given.__module__ == name

  def metrics(
    self, y: Any, outputs: Any, weights: tf.Tensor | None = None
  ) -> Any:
    """Returns {name: [n] or metric_total.Total}.

    Args:
      y, outputs: nests of tensors [n, ...].
      weights: float32 tensor [n], those of the examples.
    """
    given = getattr(self._module, 'metrics', None)
    if callable(given):
      return given(y, outputs)
    given = self._find_metrics()
    if not given:
      return {}
    y, outputs = keras_losses.pair(y, outputs)
    if self._metrics is None:
      self._metrics = {}
      for part, is_weighted in given:
        with runtime.eagerly():
          name, metric = keras_metrics.make(part, y, outputs)
        if is_weighted and name in self._metrics:
          name = f'weighted_{name}'  # As Keras calls it.
        self._metrics[name] = metric, is_weighted
    return {
      name: keras_metrics.count(
        metric, y, outputs, weights if is_weighted else None
      )
      for name, (metric, is_weighted) in self._metrics.items()
    }

  def _find_metrics(self) -> list[tuple[Any, bool]]:
    """Returns the list of (what is to be measured, whether weights count).

    Raises:
      ValueError: a nest, for a model of several outputs.
    """
    kinds = 'metrics', 'weighted_metrics'
    given = {kind: getattr(self._module, kind, None) for kind in kinds}
    if not any(given.values()):
      given = {kind: self._compiled.get(kind) for kind in kinds}
    found = [
      (part, kind == 'weighted_metrics')
      for kind in kinds
      for part in _list(given[kind])
    ]
    for part, _ in found:
      if isinstance(part, (dict, list, tuple)):
        raise ValueError(
          f'the metrics have {problem_module.shorten(part)}: expected a list of'
          ' names, objects or functions; for a model of several outputs write '
          'a function metrics(y, outputs)'
        )
    return found

  def finish(self, means: Mapping[str, Any]) -> Any:
    """Returns {name: float} from the sums of Totals and the other means."""
    values = dict(means)
    for name, (metric, _) in (self._metrics or {}).items():
      if isinstance(values.get(name), list):
        values[name] = keras_metrics.finish(metric, values[name])
    if hasattr(self._module, 'finish'):
      values = self._module.finish(values)
    return values


def _takes_nests(given: Any, y: Any, outputs: Any) -> bool:
  """Whether it is a function, not of Keras, for several outputs or labels.

  Of one output it may be written for Keras, which makes the shapes fit.
  """
  if not inspect.isfunction(given) or given.__module__.startswith('keras.'):
    return False
  return any(len(tf.nest.flatten(nest)) > 1 for nest in (y, outputs))


def _list(
  given: Any,
) -> list[Any]:
  """Returns Keras's `metrics` as a list: one needs none, and None is empty.

  Those of a model's only output may be in a dict, or in a list of lists.
  """
  if given is None:
    return []
  if isinstance(given, dict):
    given = [*given.values()]
  if not isinstance(given, (list, tuple)):
    return [given]
  is_nest = len(given) == 1 and isinstance(given[0], (dict, list, tuple))
  return _list(given[0]) if is_nest else [*given]
