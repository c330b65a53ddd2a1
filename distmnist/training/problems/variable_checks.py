"""Whether the variables of a model are such that an update rule trains them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import tensorflow.compat.v1 as tf

from distmnist.common import cli

if TYPE_CHECKING:
  import contextlib


class Noted:
  """What is made by tf.get_variable, and checks of what is made besides."""

  def __init__(
    self, maker: str, error: Callable[[str], Exception] = cli.UsageError
  ) -> None:
    """
    Args:
      maker: the function that makes the variables, such as 'build()'.
    """
    self._maker = maker
    self._error = error
    self._names: set[str] = set()

  def scope(self) -> contextlib.AbstractContextManager[tf.VariableScope]:
    """Returns the variable scope to build the model in, inside all others.

    In it a variable with a constraint raises the error.
    """
    return tf.variable_scope(
      tf.get_variable_scope(), custom_getter=self._get_variable
    )

  def _get_variable(
    self,
    getter: Callable[..., tf.Variable],
    name: str,
    *args: Any,
    **kwargs: Any,
  ) -> tf.Variable:
    if kwargs.get('constraint'):
      raise self._error(
        f'the variable {name!r} has a constraint, which no update rule keeps: '
        'have the model compute with what the constraint gives, such as '
        'tf.maximum(weights, 0)'
      )
    self._names.add(name)
    return getter(name, *args, **kwargs)

  def check_made(self, variables: Iterable[tf.Variable]) -> None:
    """Raises the error if one of `variables` was made in another way."""
    for variable in variables:
      name = variable.op.name
      # A partitioner splits the requested variable into parts.
      if not {name, name.rpartition('/part_')[0]} & self._names:
        raise self._error(
          f'the variable {name!r} is made by a Keras layer, by TensorFlow 2 or '
          f'outside of {self._maker}: make it there by tf.get_variable or '
          'tf.Variable of tensorflow.compat.v1, which put it on a ps'
        )

  def check_trainable(self) -> None:
    """Raises the error if a variable cannot be trained, or saved, as it is."""
    for variable in tf.global_variables():
      if not variable.shape.is_fully_defined():
        raise self._error(
          f'the variable {variable.op.name!r} is of shape {variable.shape}: '
          'expected one whose sizes are all known'
        )
    for variable in tf.trainable_variables():
      if not variable.dtype.is_floating:
        raise self._error(
          f'the variable {variable.op.name!r} is of {variable.dtype.name}, and '
          'no gradient moves it: make it with trainable=False, or of floats'
        )
