"""keras_errors: what Keras says of a layer, as one line."""

import warnings

import keras
import pytest

from distmnist import runtime
from distmnist.training.problems import keras_errors

_INFERRED = """Exception encountered when calling Net.call().

Could not automatically infer the output shape / dtype of 'net' (of type Net). \
Either the `Net.call()` method is incorrect, or you need to implement the \
`Net.compute_output_spec() / compute_output_shape()` method. Error encountered:

Exception encountered when calling Mine.call().

{}

Arguments received by Mine.call():
  • x=tf.Tensor(shape=(None, 3), dtype=float32)

Arguments received by Net.call():
  • kwargs=<class 'inspect._empty'>"""


_REFUSED = 'You cannot add new elements of state (variables or sub-layers)'
_OTHER = 'Input 0 with name x is wrong.\nArguments received by me'


@pytest.mark.parametrize(
  'text, expected',
  [
    (_INFERRED.format('Wrong shapes: [3].'), 'Mine.call(): Wrong shapes: [3].'),
    (_INFERRED.format(_REFUSED), f'Mine.call(): {keras_errors.MAKES_VARIABLE}'),
    (
      _INFERRED.format('Cannot convert a Tensor of dtype resource to a NumPy'),
      f'Mine.call(): {keras_errors.USES_STATE}',
    ),
    (_OTHER, _OTHER),
  ],
)
def test_the_innermost_layer_and_its_cause_are_kept(text, expected):
  assert keras_errors.shorten(text) == expected


def test_a_variable_is_refused_with_the_path_of_its_layer():
  layer = keras.layers.Dense(1, name='mine')

  def call(self):
    keras_errors.refuse_variable(None)
    return self

  with pytest.raises(ValueError, match='^mine: a variable is made while'):
    call(layer)


def test_a_draw_without_a_seed_is_named():
  with runtime.eagerly():
    seed = keras.random.SeedGenerator(1).state

  def make(self):
    keras_errors.refuse_variable(None)
    return self

  with pytest.raises(ValueError, match='state: a layer draws without a seed'):
    make(seed)


def test_a_warning_that_an_error_follows_is_kept_back(recwarn):
  with keras_errors.quiet():
    warnings.warn(
      "Layer 'x' looks like it has unbuilt state, but", stacklevel=1
    )
    warnings.warn('another', stacklevel=1)
  assert [str(w.message) for w in recwarn.list] == ['another']


def test_an_assignment_to_a_trained_weight_is_named():
  with runtime.eagerly():
    variable = keras.Variable([1.0], name='mine')
    with (
      pytest.raises(ValueError, match='mine: the layer assigns to a weight'),
      keras_errors.refusing_assignment([variable]),
    ):
      variable.assign_add([1.0])
    variable.assign([2.0])
