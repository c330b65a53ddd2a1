"""Keras's message for an error in a layer, as one line that names the layer."""

from __future__ import annotations

import contextlib
import functools
import re
import sys
import traceback
import warnings
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
  import keras

_CALL = re.compile(r'Exception encountered when calling ([\w.]+\(\))\.')
# How Keras and TensorFlow refuse a variable made while a layer runs.
_MADE = re.compile(
  'cannot add new elements of state'
  '|create a variable while in a stateless scope'
  '|could not be lifted out of a `tf.function`'
)
# How TensorFlow refuses what was made eagerly and has a state.
_EAGER = re.compile('Tensor of dtype resource to a NumPy')
USES_STATE = (
  'it uses a lookup table, a metric or a draw without a seed, which a step '
  'cannot: look words up in preprocess() of the file, measure in metrics() and '
  'give each draw a keras.random.SeedGenerator of the layer'
)
# Our message for a variable that is made.
MAKES_VARIABLE = (
  'a variable is made while the layer is called: make it once, in its __init__ '
  'or build, by self.add_weight'
)


def shorten(text: str) -> str:
  """Returns what happened in the innermost layer, such as 'Dense.call(): ...'.

  Args:
    text: an error's message, without colors. One that does not come from a
      layer is returned unchanged.
  """
  calls = list(_CALL.finditer(text))
  if not calls:
    return text
  # The shapes that could not be inferred come before what happened; the
  # arguments of the layer's call come after it.
  cause = text[calls[-1].end() :].rpartition('Error encountered:')[2]
  cause = cause.partition('Arguments received by')[0].strip()
  if _MADE.search(cause):
    cause = MAKES_VARIABLE
  elif _EAGER.search(cause):
    cause = USES_STATE
  return f'{calls[-1][1]}: {cause}'


def refuse_variable(make: Any, **kwargs: Any) -> NoReturn:
  """Raises ValueError with the path of a variable or of the running layer.

  For tf.variable_creator_scope around a call of a model.
  """
  del make, kwargs
  import keras  # noqa: PLC0415  Only for Keras models.

  kinds = keras.Variable, keras.Layer
  maker = next(
    maker
    for frame, _ in traceback.walk_stack(sys._getframe())
    if isinstance(maker := frame.f_locals.get('self'), kinds)
  )
  message = MAKES_VARIABLE
  if maker.name == 'seed_generator_state':
    message = (
      'a layer draws without a seed: make a keras.random.SeedGenerator in its '
      '__init__, and give it as seed= to each draw'
    )
  raise ValueError(f'{maker.path or maker.name}: {message}')


@contextlib.contextmanager
def refusing_assignment(variables: Sequence[keras.Variable]) -> Iterator[None]:
  """Makes an assignment to a weight, while a layer is called, a ValueError.

  Args:
    variables: those that an update rule trains. What a layer assigns to one
      would be lost: `stateless_call` does not return it.
  """

  def refuse(path: str, *args: Any, **kwargs: Any) -> NoReturn:
    del args, kwargs
    raise ValueError(
      f'{path}: the layer assigns to a weight that is trained, which only the '
      'optimizer may change: compute with a new value in its place, or make '
      'the weight with trainable=False'
    )

  for variable in variables:
    # Not with the variable's own __setattr__; assign_add calls assign.
    object.__setattr__(
      variable, 'assign', functools.partial(refuse, variable.path)
    )
  try:
    yield
  finally:
    for variable in variables:
      object.__delattr__(variable, 'assign')


@contextlib.contextmanager
def quiet() -> Iterator[None]:
  """Suppresses the warnings that Keras gives before it raises an error."""
  with warnings.catch_warnings():
    warnings.filterwarnings('ignore', '.*looks like it has unbuilt state')
    yield
