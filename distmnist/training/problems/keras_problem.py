"""A problem whose model, loss and metrics come from Keras.

A problem's module with `make_model() -> keras.Model` in place of `build` may
define the rest as in Keras: `loss` and each item of the list `metrics` is a
name ('mse'), an object from keras.losses or keras.metrics, or a function of
(y, outputs). What the model was compiled with need not be repeated.
"""

import inspect

import tensorflow.compat.v1 as tf

from distmnist import runtime
from distmnist.common import cli
from distmnist.data import metric_total
from distmnist.training.problems import keras_model, problem_module

_adapted = {}  # {module: its KerasModule}. A process makes a model once.


def adapt(named, module, seed):
  """Returns the KerasModule of a module; its model is made at the first call.

  Must not be called while a graph is being built.

  Args:
    named: str, how the user names the module.
    module: the user's, with `make_model`.
    seed: int, for the initial weights.

  Raises:
    cli.UsageError: make_model() fails or does not return a keras.Model.
  """
  if module not in _adapted:
    import keras  # noqa: PLC0415  Only for Keras models.

    if keras.backend.backend() != 'tensorflow':
      raise cli.UsageError(
        f'Keras is set to {keras.backend.backend()}: expected '
        'KERAS_BACKEND=tensorflow'
      )

    with runtime.eagerly():
      keras.utils.clear_session()  # The numbers in names start over.
      keras.utils.set_random_seed(seed)
    model = problem_module.call(named, module, 'make_model')
    if not isinstance(model, keras.Model):
      raise cli.UsageError(
        f'--problem={named}: make_model() gave {problem_module.shorten(model)}:'
        ' expected a keras.Model'
      )
    _adapted[module] = KerasModule(module, model)
  return _adapted[module]


class KerasModule:
  """A user's Keras module with the functions that problem.Problem calls.

  All other attributes are the module's own.
  """

  def __init__(self, module, model):
    """
    Args:
      module: the user's.
      model: keras.Model, made eagerly.
    """
    import keras  # noqa: PLC0415  Only for Keras models.

    self._keras = keras
    self._module = module
    self._model = keras_model.KerasModel(model)
    with runtime.eagerly():
      config = model.get_compile_config() if model.compiled else None
      self._compiled = keras.saving.deserialize_keras_object(config or {})
    self._metrics = None

  def __getattr__(self, name):
    return getattr(self._module, name)

  def build(self, x, is_training):
    return self._model.build(x, is_training)

  def save(self, values, path):
    self._model.save(values, path)

  def loss(self, y, outputs):
    """Returns the loss of each example, or their mean.

    Raises:
      ValueError: there is none.
    """
    given = getattr(self._module, 'loss', None) or self._compiled.get('loss')
    if given is None:
      raise ValueError(
        "there is no loss: expected loss = 'mse' or the like, a function "
        'loss(y, outputs), or a model that is compiled with one'
      )
    if inspect.isfunction(given) and given.__module__ == self._module.__name__:
      return given(y, outputs)
    values = self._make_loss(given)(_align(y, outputs), outputs)
    if values.shape.ndims > 1:
      values = tf.reduce_mean(values, range(1, values.shape.ndims))
    return values

  def _make_loss(self, given):
    """Returns callable(y, outputs) -> values [n, ...]."""
    losses = self._keras.losses
    loss = losses.get(given)
    if isinstance(loss, losses.Loss):
      # Keras's own mean would cover only one worker's batch.
      loss = loss.from_config(loss.get_config() | {'reduction': None})
    return loss

  def metrics(self, y, outputs):
    """Returns {name: [n] or metric_total.Total}."""
    given = getattr(self._module, 'metrics', None)
    if callable(given):
      return given(y, outputs)
    if self._metrics is None:
      given = given or self._compiled.get('metrics') or []
      with runtime.eagerly():
        made = [self._make_metric(g, y, outputs) for g in given]
      self._metrics = dict(made)
    y = _align(y, outputs)
    return {
      name: _count(metric, y, outputs) for name, metric in self._metrics.items()
    }

  def _make_metric(self, given, y, outputs):
    """Returns (name, keras.metrics.Metric) for a name, object or function."""
    metrics = self._keras.metrics
    if isinstance(given, str) and given in ('accuracy', 'acc'):
      return given, _choose_accuracy(metrics, y, outputs)()
    metric = metrics.get(given)
    if inspect.isclass(metric):
      metric = metric()
    if not isinstance(metric, metrics.Metric):
      metric = metrics.MeanMetricWrapper(metric, name=metric.__name__)
    return given if isinstance(given, str) else metric.name, metric

  def finish(self, means):
    """Returns {name: float} from the sums of Totals and the other means."""
    values = dict(means)
    for name, metric in (self._metrics or {}).items():
      if isinstance(values.get(name), list):
        with runtime.eagerly():
          result = metric.stateless_result(values[name])
          values[name] = float(result.numpy())
    if hasattr(self._module, 'finish'):
      values = self._module.finish(values)
    return values


def _align(y, outputs):
  """Returns y as [n, 1] where it is [n] and the outputs are [n, 1].

  Otherwise a loss would compare each label with the output of every example.
  """
  if not (tf.is_tensor(y) and tf.is_tensor(outputs)):
    return y
  if y.shape.ndims == outputs.shape.ndims - 1 and outputs.shape[-1] == 1:
    return tf.expand_dims(y, -1)
  return y


def _choose_accuracy(metrics, y, outputs):
  """Returns the class that Keras means by 'accuracy' for these shapes."""
  if outputs.shape[-1] == 1 or outputs.shape.ndims == 1:
    return metrics.BinaryAccuracy
  if y.shape.ndims == outputs.shape.ndims and y.shape[-1] != 1:
    return metrics.CategoricalAccuracy
  return metrics.SparseCategoricalAccuracy


def _count(metric, y, outputs):
  """Returns the metric_total.Total of a batch."""
  with runtime.eagerly():
    first = [v.numpy() for v in metric.variables]
  states = metric.stateless_update_state(
    [tf.constant(value) for value in first], y, outputs
  )
  value = metric.stateless_result(states)
  return metric_total.Total(list(states), tf.cast(value, tf.float32))
