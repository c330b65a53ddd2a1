"""keras_tables: which layers of a model are tables, and what they compute."""

import keras
import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from distmnist import runtime
from distmnist.tables import sparse_table
from distmnist.training.problems import keras_model
from distmnist.transport import fed_initial_values

X = np.array([[3, 0], [69, 3], [5, 5]])
layers = keras.layers
pytestmark = pytest.mark.slow  # Each makes a model of Keras, and a graph.


@pytest.fixture
def set_tables(set_flags):
  set_flags()
  return lambda value: set_flags(f'--sparse_tables={value}')


def make(build, dtype='int64'):
  """Returns (keras.Model, KerasModel) of build(input [n, 2])."""
  with runtime.eagerly():
    keras.utils.clear_session()
    keras.utils.set_random_seed(1)
    x = layers.Input([2], dtype=dtype)
    model = keras.Model(x, build(x))
  return model, keras_model.KerasModel(model)


def compute(ours, x=X):
  """Returns (outputs, {name: value} of the variables, names of the tables)."""
  with tf.Graph().as_default(), tf.Session() as session:
    outputs = ours.build(tf.constant(x), is_training=False)
    session.run(
      tf.global_variables_initializer(), fed_initial_values.make_feed()
    )
    values = {v.op.name: v for v in tf.global_variables()}
    tables = [v.op.name for v in tf.get_collection(sparse_table.TABLES)]
    return *session.run((outputs, values)), tables


def embedded(x, **settings):
  return layers.Embedding(70, 3, name='ids', **settings)(x)


@pytest.mark.parametrize('dtype', ['int64', 'float32'])
def test_a_table_gives_the_rows_of_the_layer(set_tables, tmp_path, dtype):
  set_tables('all')
  model, ours = make(embedded, dtype)
  outputs, values, tables = compute(ours, X.astype(dtype))
  assert tables == ['ids/embeddings/rows']
  with runtime.eagerly():
    weight = model.weights[0].numpy()
  np.testing.assert_array_equal(outputs, weight[X])
  ours.save({tables[0]: values[tables[0]] + 1}, str(tmp_path / 'm.keras'))
  with runtime.eagerly():
    saved = keras.saving.load_model(tmp_path / 'm.keras').weights[0].numpy()
  np.testing.assert_array_equal(saved, weight + 1)


def test_a_layer_that_is_called_twice_is_one_table(set_tables):
  set_tables('all')

  def build(x):
    layer = layers.Embedding(70, 3, mask_zero=True)
    return layers.Dot(1)([layer(x), layer(x[:, ::-1])])

  model, ours = make(build)
  outputs, _, tables = compute(ours)
  assert len(tables) == 1
  with runtime.eagerly():
    np.testing.assert_allclose(outputs, model(X).numpy(), rtol=1e-6)


class Doubled(layers.Embedding):
  def call(self, inputs):
    return 2 * super().call(inputs)


class Tied(layers.Layer):
  """Its outputs are compared with all rows, like those of a language model."""

  def __init__(self):
    super().__init__()
    self.rows = layers.Embedding(70, 3)

  def call(self, x):
    return keras.ops.matmul(
      self.rows(x), keras.ops.transpose(self.rows.embeddings)
    )


class Looping(layers.Layer):
  def __init__(self):
    super().__init__()
    self.rows = layers.Embedding(70, 3)

  def call(self, x):
    self.rows.build()
    return keras.ops.fori_loop(
      0, 2, lambda i, total: total + self.rows(x), keras.ops.zeros([3, 2, 3])
    )


def frozen(x):
  layer = layers.Embedding(70, 3)
  layer.trainable = False
  return layers.Dense(1)(layer(x))


@pytest.mark.parametrize(
  'build',
  [
    Doubled(70, 3),
    Tied(),
    Looping(),
    frozen,
    lambda x: embedded(x, embeddings_regularizer='l2'),
    lambda x: embedded(x, dtype='bfloat16'),
  ],
  ids=['subclass', 'tied', 'loop', 'frozen', 'regularizer', 'bfloat16'],
)
def test_what_no_table_can_do_stays_a_variable(set_tables, build):
  set_tables('all')
  model, ours = make(build)
  outputs, _, tables = compute(ours)
  assert not tables
  with runtime.eagerly():
    np.testing.assert_allclose(outputs, model(X).numpy(), atol=1e-6)


@pytest.mark.parametrize(
  ('value', 'rows', 'is_table', 'large'),
  [
    ('auto', 333_333, False, []),
    ('auto', 333_334, True, []),
    ('large', 333_334, True, []),
    ('none', 333_333, False, []),
    ('none', 333_334, False, ['embedding/embeddings']),
    ('all', 2, True, []),
  ],
)
def test_how_large_it_has_to_be(set_tables, value, rows, is_table, large):
  set_tables(value)
  _, ours = make(lambda x: layers.Embedding(rows, 3)(x))
  with tf.Graph().as_default():
    ours.build(tf.constant(X), is_training=True)
    assert bool(tf.get_collection(sparse_table.TABLES)) == is_table
  assert ours.large_variables == large
