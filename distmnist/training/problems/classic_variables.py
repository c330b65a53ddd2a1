"""tf.Variable in a user's model, as the classic scripts make their variables.

tf.Variable knows no partitioner, no update rule and no seed by name. Inside
`shared` it asks tf.get_variable for a variable with the name that it would have
had, so a variable made by either lies on a ps, in shards, with the same first
value whatever the number of ps.
"""

from __future__ import annotations

import collections
import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow.compat.v1 as tf


@contextlib.contextmanager
def shared(make_error: Callable[[str], Exception]) -> Iterator[None]:
  """Has tf.Variable make what tf.get_variable makes, once per call of a model.

  Each call of a model has to be in a context of its own, and makes the same
  variables as the one before: names are counted from the beginning.

  Left as they are: local variables, and what Keras's layers make.

  Args:
    make_error: makes the error about a variable that no rule could train.
  """
  # Another call within the same scope gets one of its own, or TensorFlow would
  # number the scopes within it on, and so the variables.
  name = tf.get_default_graph().unique_name('again')
  is_first = name.rpartition('/')[2] == 'again'
  with contextlib.nullcontext() if is_first else tf.name_scope('again'):
    maker = _Maker(make_error)
    with (
      tf.variable_scope(
        tf.get_variable_scope(),
        custom_getter=maker.note,
        auxiliary_name_scope=False,
      ) as maker.scope,
      tf.variable_creator_scope(maker.create),
    ):
      yield


class _Maker:
  """Makes the variables of one call of a model, and keeps count of names."""

  def __init__(self, make_error: Callable[[str], Exception]) -> None:
    self.scope: tf.VariableScope = None
    self._make_error = make_error
    self._root = tf.get_default_graph().get_name_scope()
    # A global step of the script's own gets another name than ours.
    self._num_of_name = collections.Counter({'global_step': 1})
    self._is_in_getter = False

  def note(
    self,
    getter: Callable[..., tf.Variable],
    name: str,
    *args: Any,
    **kwargs: Any,
  ) -> tf.Variable:
    """A custom getter: whatever is made in it is tf.get_variable's."""
    is_outermost, self._is_in_getter = not self._is_in_getter, True
    self._num_of_name[name] = max(1, self._num_of_name[name])
    try:
      return getter(name, *args, **kwargs)
    finally:
      self._is_in_getter = not is_outermost

  def create(
    self, make_next: Callable[..., tf.Variable], **kwargs: Any
  ) -> tf.Variable:
    """A creator (tf.variable_creator_scope) of what tf.Variable asks for."""
    is_local = tf.GraphKeys.LOCAL_VARIABLES in (kwargs.get('collections') or ())
    # Only the class of TensorFlow 1 passes `use_resource`; Keras has the other.
    if self._is_in_getter or is_local or 'use_resource' not in kwargs:
      return make_next(**kwargs)
    name = self._choose_name(kwargs['name'] or 'Variable')
    value, dtype = kwargs['initial_value'], kwargs['dtype']
    with tf.control_dependencies(None):
      value = tf.convert_to_tensor(value() if callable(value) else value, dtype)
    if not value.shape.is_fully_defined():
      raise self._make_error(
        f'tf.Variable {name!r} has a first value of shape {value.shape}: '
        'expected one whose sizes are all known, so that it can be cut into '
        'shards'
      )
    trainable = kwargs['trainable']
    with tf.variable_scope(self.scope, auxiliary_name_scope=False):
      return tf.get_variable(
        name,
        value.shape,
        value.dtype.base_dtype,
        lambda shape, dtype: value,
        trainable=True if trainable is None else trainable,
        collections=kwargs['collections'],
        constraint=kwargs['constraint'],
      )

  def _choose_name(self, name: str) -> str:
    """Returns the name within the model that tf.Variable would choose."""
    scope = tf.get_default_graph().get_name_scope()
    inside = scope.removeprefix(self._root).strip('/')
    full = f'{inside}/{name}' if inside else name
    number = self._num_of_name[full]
    self._num_of_name[full] += 1
    return f'{full}_{number}' if number else full
