"""ModelVariables: which variables a model gets in place of the center's."""

import pytest
import tensorflow.compat.v1 as tf

from distmnist.exchange.center import center
from distmnist.tables import sparse_table
from distmnist.transport import sharding, variable_lists


class FakeRows:
  def get(self, getter, name, *args, **kwargs):
    del getter, args, kwargs
    return f'rows of {name}'


class Doubled(center.ModelVariables):
  """Its views are twice the values; it notes the end of the scope."""

  is_connected = False

  def _make_view(self, center, shards, name):
    whole = shards[0] if len(shards) == 1 else tf.concat(shards, 0)
    return tf.multiply(whole, 2, name)

  def _connect_views(self):
    self.is_connected = True


class Moving(Doubled):
  _keeps_in_place = False


def get(name, **settings):
  return tf.get_variable(
    name, [4], initializer=tf.ones_initializer(), **settings
  )


@pytest.fixture(autouse=True)
def graph():
  with tf.Graph().as_default():
    yield


def in_place():
  return [tf.GraphKeys.GLOBAL_VARIABLES, variable_lists.IN_PLACE]


def test_a_model_gets_views_of_what_is_trained_and_the_rest_itself():
  variables = Doubled(FakeRows())
  with variables.scope(), sharding.sharded(2):
    view = get('trained')
    still = get('still', trainable=False)
  assert [v.shape for v in variables.shards] == [(2,), (2,)]
  assert variables.views == [view]
  assert tf.is_tensor(view) and view.op.type == 'Mul'
  assert not isinstance(still, tf.Tensor)
  assert variables.is_connected


def test_another_tower_gets_the_view_of_the_first():
  variables = Doubled(FakeRows())
  with variables.scope():
    first = get('shared')
    with tf.variable_scope(tf.get_variable_scope(), reuse=True):
      assert get('shared') is first
  assert len(variables.views) == len(variables.shards) == 1


def test_what_stays_in_place_comes_last_and_is_its_own_view():
  variables = Doubled(FakeRows())
  with variables.scope():
    there = get('there', collections=in_place())
    pulled = get('pulled')
  assert variables.views == [pulled, there]
  assert [v.op.name for v in variables.shards] == ['pulled', 'there']
  assert tf.get_collection(variable_lists.IN_PLACE) == [there]


def test_who_takes_all_to_the_worker_leaves_nothing_in_place():
  variables = Moving(FakeRows())
  with variables.scope():
    view = get('there', collections=in_place())
  assert variables.views == [view]
  assert not tf.get_collection(variable_lists.IN_PLACE)


def test_tables_are_for_the_rows():
  variables = Doubled(FakeRows())
  with variables.scope():
    assert get('users', collections=[sparse_table.TABLES]) == 'rows of users'
  assert variables.views == variables.shards == []
