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


def test_the_tasks_are_told_the_names_of_their_own_model():
  model, kept = make(), make()  # Keras calls the last layer otherwise.
  last = model.trainable_variables[-1].path.partition('/')[2]
  groups = keras_groups.parse({last: RATE, 'body/.*': {'optimizer': 'adam'}})
  chosen = keras_groups.choose(groups, model)
  told = keras_groups.tell(groups, chosen, kept)
  paths = [v.path for v in kept.trainable_variables]
  assert told[0].pattern == f'{paths[-1]}(/rows)?'
  assert told[1].pattern == f'{paths[0]}(/rows)?|{paths[1]}(/rows)?'
  assert [group.shown for group in told] == [
    f'groups[{last!r}]',
    "groups['body/.*']",
  ]
  assert told[1].optimizer == 'adam'


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
