"""A Keras model in classic graphs, with its variables in the center.

The model is made once, eagerly and outside all graphs. In a graph its
`stateless_call` computes with what `tf.get_variable` gives for each of its
variables, so that every update rule works on it, as on a net written with
`tf.get_variable`. The center starts from the model's values, including
pretrained ones.

What a layer changes on its own, such as the averages of batch norm, is left to
transport/model_state.py. Its seeds are not variables here: a step's seeds
depend on the place of its batch in the stream of examples, so that a batch that
is read again gets the same dropout. With one worker they are the seeds that
`model.fit` has in that step.
"""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import tensorflow.compat.v1 as tf

from distmnist import runtime
from distmnist.common import files
from distmnist.common import names as names_lib
from distmnist.data import seeds
from distmnist.training.problems import (
  keras_checks,
  keras_errors,
  keras_tables,
)
from distmnist.transport import fed_initial_values, model_state

if TYPE_CHECKING:
  import keras
  import numpy as np


class _Weight(NamedTuple):
  """A Keras variable of the model, and its name in the center."""

  variable: keras.Variable
  name: str
  is_trained: bool


class KerasModel:
  """One keras.Model, and the graphs that compute with it.

  Attributes:
    large_variables: the weights that could be sparse tables, but are not wanted
      as such; known once the model is built.
  """

  def __init__(self, model: keras.Model) -> None:
    """
    Args:
      model: made eagerly.
    """
    self._model = model
    self._weights: list[_Weight] = []
    self._num_draws: dict[int, int] = {}
    self._tables: dict[int, keras.layers.Embedding] = {}
    self.large_variables: list[str] = []

  def name_trained(self) -> list[str]:
    """Returns the names of the trained weights, a list, of a built model."""
    # Those of the others come after them.
    return names_lib.of_weights(v.path for v in self._model.trainable_variables)

  def build(self, x: Any, is_training: bool) -> Any:
    """Returns the outputs for x, nests of tensors [n, ...].

    In training, the regularizers' losses are in REGULARIZATION_LOSSES.

    Raises:
      ValueError: x lacks an input of the model.
    """
    if getattr(self._model, 'inputs', None):
      x = _pick(x, getattr(self._model, 'input', None))
    if not self._weights:
      self._build_layers(x)
    trained, untrained, tables = [], {}, {}
    for weight in self._weights:
      variable = weight.variable
      layer = self._tables.get(id(variable))
      if layer:
        load = functools.partial(_fetch, variable)
        tables[layer] = keras_tables.make(layer, weight.name, load)
        # Nothing computes with it: lookups use the table instead.
        trained.append(tf.placeholder(variable.dtype, variable.shape))
      elif weight.is_trained:
        trained.append(tf.convert_to_tensor(self._get_variable(weight)))
      else:
        untrained[id(variable)] = self._get_variable(weight)
    batch_size = tf.nest.flatten(x)[0].shape[0] if is_training else None
    others = self._model.non_trainable_variables
    read = [
      model_state.read(untrained[id(v)])
      if id(v) in untrained
      else self._make_seed(v, batch_size)
      for v in others
    ]
    with (
      tf.variable_creator_scope(keras_errors.refuse_variable),
      keras_errors.refusing_assignment(self._model.trainable_variables),
      keras_tables.looking_up(tables, lambda layer, ids: tables[layer](ids)),
    ):
      outputs, new, *losses = self._model.stateless_call(
        trained, read, x, return_losses=True, **self._make_mode(is_training)
      )
    if is_training:
      for variable, old, value in zip(others, read, new, strict=True):
        if id(variable) in untrained and value is not old:
          model_state.change(untrained[id(variable)], value)
      for loss in tf.nest.flatten(losses):
        tf.add_to_collection(tf.GraphKeys.REGULARIZATION_LOSSES, loss)
    return outputs

  def save(self, values: Mapping[str, np.ndarray], path: str) -> None:
    """Writes the model as a Keras file, whole or not at all.

    Args:
      values: by the names of variables; see checkpoints.fetch_whole.
      path: ending in .keras.
    """
    folder, name = os.path.split(path)
    unfinished = os.path.join(folder, f'unfinished_{name}')
    with runtime.eagerly():
      for weight in self._weights:
        layer = self._tables.get(id(weight.variable))
        if layer:
          rows = values[keras_tables.name_rows(weight.name)]
          weight.variable.assign(keras_tables.read(layer, rows))
        else:
          weight.variable.assign(values[weight.name])
      if self._model.compiled and self._model.optimizer:
        # We do not use its slots, but the file could not be loaded without.
        self._model.optimizer.build(self._model.trainable_variables)
      self._model.save(unfinished)
    files.sync(unfinished)
    os.replace(unfinished, path)

  def _build_layers(self, x: Any) -> None:
    """Makes the layers create their variables, and names the variables."""
    import keras  # noqa: PLC0415  Only for Keras models.

    model = self._model
    with runtime.eagerly(), keras_errors.quiet():
      if not model.built:
        model(
          tf.nest.map_structure(
            lambda t: keras.KerasTensor((None, *t.shape[1:]), t.dtype.name),
            x,
          )
        )
      keras_checks.check(model)
      state = {id(v) for v in self._find_state()}
      mode = self._make_mode(is_training=True)
      self._num_draws = _count_draws(model, state, x, mode)
    trained, others = model.trainable_variables, self._find_state()
    variables = [*trained, *others]
    found = names_lib.of_weights(v.path for v in variables)
    self._weights = [
      _Weight(variable, name, number < len(trained))
      for number, (variable, name) in enumerate(
        zip(variables, found, strict=True)
      )
    ]
    found = keras_tables.find(model, x, **mode)
    if keras_tables.are_wanted():
      self._tables = found
    else:
      self.large_variables = [
        w.name for w in self._weights if id(w.variable) in found
      ]

  def _find_state(self) -> list[keras.Variable]:
    """Returns the list of untrained variables that are not seeds."""
    model, weights = self._model, {id(v) for v in self._model.weights}
    return [v for v in model.non_trainable_variables if id(v) in weights]

  def _make_mode(self, is_training: bool) -> dict[str, bool]:
    """Returns the argument `training` if the model's `call` takes it."""
    known = inspect.signature(self._model.call).parameters
    return {'training': is_training} if 'training' in known else {}

  def _get_variable(self, weight: _Weight) -> tf.Variable:
    """Returns the graph's variable for a weight, with its initial value."""
    variable = weight.variable
    with tf.variable_scope(tf.get_variable_scope()) as scope:
      if not weight.is_trained:
        scope.set_partitioner(None)  # Its copy is read and sent as a whole.
      fed_initial_values.give(
        f'{scope.name}/{weight.name}'.lstrip('/'), lambda: _fetch(variable)
      )
      return tf.get_variable(
        weight.name,
        variable.shape,
        tf.as_dtype(variable.dtype),
        tf.zeros_initializer(),
        trainable=weight.is_trained,
      )

  def _make_seed(
    self, variable: keras.Variable, batch_size: int | None
  ) -> tf.Tensor:
    """Returns the value of a seed of the model in a step, [2].

    Args:
      batch_size: None in an evaluation, which draws nothing.
    """
    first = _fetch(variable)
    if not batch_size:
      return tf.constant(first)
    number = tf.cast(seeds.find_place() // batch_size, first.dtype)
    moved = self._num_draws[id(variable)] * number
    return tf.stack([tf.constant(first[0]), first[1] + moved])


def _count_draws(
  model: keras.Model, state: set[int], x: Any, mode: dict[str, bool]
) -> dict[int, int]:
  """Returns {id: int}: by how much a step moves each seed of a model.

  Args:
    model: built.
    state: set of the ids of its untrained variables that are not seeds.
    x: nest of tensors [n, ...].
    mode: arguments of its `call` besides x.
  """
  others = model.non_trainable_variables
  if all(id(v) in state for v in others):
    return {}
  zeros = tf.nest.map_structure(
    lambda t: tf.zeros([2, *t.shape[1:]], t.dtype), x
  )
  _, new, *_ = model.stateless_call(
    [v.value for v in model.trainable_variables],
    [v.value for v in others],
    zeros,
    **mode,
  )
  return {
    id(old): int(value[1]) - int(old.value[1])
    for old, value in zip(others, new, strict=True)
    if id(old) not in state
  }


def _pick(x: Any, inputs: Any) -> Any:
  """Returns those parts of x whose names a model's inputs have.

  Given more of them, Keras takes the first ones by name, whichever they are.

  Args:
    x: nest of tensors [n, ...].
    inputs: nest of Keras's tensors.

  Raises:
    ValueError: x lacks one.
  """
  if not isinstance(x, dict) or not isinstance(inputs, dict):
    return x
  if missing := [name for name in inputs if name not in x]:
    raise ValueError(
      f'x has no {missing[0]!r}, an input of the model: it has {", ".join(x)}'
    )
  return {name: _pick(x[name], part) for name, part in inputs.items()}


def _fetch(variable: keras.Variable) -> np.ndarray:
  """Returns the value of a Keras variable as an array."""
  with runtime.eagerly():
    return variable.numpy()
