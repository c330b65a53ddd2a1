"""keras_groups: which variables of a model a group of fit has."""

import keras
import pytest
import tensorflow as tf

from distmnist import runtime
from distmnist.api import keras_groups

RATE = {'learning_rate': 2}


@pytest.fixture(autouse=True)
def eager():
  with runtime.eagerly():
    yield


def make(**name):
  """Returns a model whose paths begin with a name that Keras numbers."""
  layers = [keras.layers.Dense(2, name='body'), keras.layers.Dense(1, **name)]
  return keras.Sequential([keras.Input([3]), *layers])


@pytest.mark.parametrize(
  'pattern, members',
  [
    ('head/kernel', [2]),
    ('head/.*', [2, 3]),
    ('.*/bias', [1, 3]),
    (r'sequential(_\d+)?/head/bias', [3]),
  ],
)
def test_a_key_is_a_path_with_or_without_the_model_s_name(pattern, members):
  model = make(name='head')
  groups = keras_groups.parse({pattern: RATE})
  chosen = keras_groups.choose(groups, model)
  assert [i for i, group in enumerate(chosen) if group] == members
  assert all(group in (None, groups[0]) for group in chosen)


def test_the_places_of_a_group_are_those_of_its_variables():
  given = {'head/kernel': RATE, 'body/.*': {'optimizer': 'adam'}}
  head, body = groups = keras_groups.parse(given)
  chosen = keras_groups.choose(groups, make(name='head'))
  assert keras_groups.find_places(chosen) == {head: [2], body: [0, 1]}


@pytest.mark.parametrize(
  'given, named',
  [
    ([], 'groups is of type list'),
    ({'head/.*': {'rate': 2}}, r"groups\['head/\.\*'\] has 'rate'"),
    ({'tail/.*': RATE}, r"groups\['tail/\.\*'\] matches .*head/kernel"),
    ({'head/.*': RATE, 'head/bias': RATE}, r"groups\['head/bias'\] has no var"),
  ],
)
def test_what_is_wrong_is_said_in_fit_s_words(given, named):
  with pytest.raises(ValueError, match=f'^{named}') as refused:
    keras_groups.choose(keras_groups.parse(given), make(name='head'))
  assert '\n' not in str(refused.value) and '--' not in str(refused.value)
  assert tf.executing_eagerly()
