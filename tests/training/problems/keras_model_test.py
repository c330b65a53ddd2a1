"""keras_model: in a graph it computes what it computes eagerly."""

import contextlib
import logging

import keras
import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from distmnist import runtime
from distmnist.data import seeds
from distmnist.training.problems import keras_model
from distmnist.transport import fed_initial_values

X = np.random.default_rng(0).normal(size=[4, 3]).astype('float32')


@pytest.fixture
def make(set_flags):
  """Returns make(*layers) -> (keras.Model, KerasModel)."""
  set_flags()

  def make_model(*makers):
    with runtime.eagerly():
      keras.utils.clear_session()
      keras.utils.set_random_seed(1)
      model = keras.Sequential([make_layer() for make_layer in makers])
    return model, keras_model.KerasModel(model)

  return make_model


@contextlib.contextmanager
def built(model, is_training, x=X):
  """Yields (outputs, session) of a graph whose variables have first values."""
  with tf.Graph().as_default(), tf.Session() as session:
    seeds.set_place(tf.constant(8, tf.int64))  # The third batch of four.
    outputs = model.build(tf.constant(x), is_training)
    session.run(
      tf.global_variables_initializer(), fed_initial_values.make_feed()
    )
    yield outputs, session


def dense():
  return keras.layers.Dense(2, kernel_regularizer='l2')


def norm():
  return keras.layers.BatchNormalization()


@pytest.mark.slow
def test_a_model_without_a_shape_is_built_for_the_batch(make):
  model, ours = make(dense, norm)
  with built(ours, is_training=False) as (outputs, session):
    found = session.run(outputs)
    names = {v.op.name for v in tf.trainable_variables()}
    others = {v.op.name for v in tf.global_variables()} - names
  with runtime.eagerly():
    np.testing.assert_allclose(found, model(X).numpy(), rtol=1e-6)
  assert names == {
    *('sequential/dense/kernel', 'sequential/dense/bias'),
    'sequential/batch_normalization/gamma',
    'sequential/batch_normalization/beta',
  }
  assert others == {
    'sequential/batch_normalization/moving_mean',
    'sequential/batch_normalization/moving_variance',
  }


def test_inputs_are_found_by_their_names(set_flags):
  set_flags()
  with runtime.eagerly():
    inputs = {name: keras.Input([1], name=name) for name in ('b', 'c')}
    model = keras.Model(inputs, inputs['b'] - 10 * inputs['c'])
  ours = keras_model.KerasModel(model)
  with tf.Graph().as_default(), tf.Session() as session:
    x = {name: tf.constant([[1.0 + i]]) for i, name in enumerate('abc')}
    # Keras itself would take a and b, with a warning.
    assert session.run(ours.build(x, is_training=False)) == 2 - 10 * 3
    del x['c']
    with pytest.raises(ValueError, match="'c'"):
      ours.build(x, is_training=False)


@pytest.mark.slow
def test_regularizers_are_penalties_in_training_alone(make):
  model, ours = make(dense)
  with built(ours, is_training=True) as (_, session):
    [penalty] = tf.losses.get_regularization_losses()
    found = session.run(penalty)
  with runtime.eagerly():
    kernel = model.weights[0].numpy()
  assert found == pytest.approx(0.01 * (kernel**2).sum())
  with built(ours, is_training=False):
    assert not tf.losses.get_regularization_losses()


@pytest.mark.slow
def test_dropout_is_that_of_the_batch_at_its_place(make):
  model, ours = make(lambda: keras.layers.Dropout(0.5), dense)
  with built(ours, is_training=True) as (outputs, session):
    found = [session.run(outputs) for _ in range(2)]
  np.testing.assert_array_equal(*found)
  with runtime.eagerly():
    expected = [model(X, training=True).numpy() for _ in range(3)]
  np.testing.assert_allclose(found[0], expected[2], rtol=1e-6)
  assert not np.allclose(expected[1], expected[2])


@pytest.mark.slow
def test_frozen_layers_are_not_trained_and_names_do_not_collide(make):
  _, ours = make(
    lambda: keras.layers.Dense(2, trainable=False, name='a.b'),
    lambda: keras.layers.Dense(2, name='a>b'),
  )
  with built(ours, is_training=True):
    assert len(tf.trainable_variables()) == 2
    assert len({v.op.name for v in tf.global_variables()}) == 4


@pytest.mark.slow
def test_a_saved_file_is_the_model_with_these_values(make, tmp_path, caplog):
  _, ours = make(dense)
  path = tmp_path / 'model.keras'
  with built(ours, is_training=False), caplog.at_level(logging.ERROR):
    values = {
      'sequential/dense/kernel': np.full([3, 2], 2.0),
      'sequential/dense/bias': np.array([1.0, 0.0]),
    }
    ours.save(values, str(path))
  with runtime.eagerly():
    loaded = keras.models.load_model(path)
    np.testing.assert_allclose(loaded(np.ones([1, 3])), [[7, 6]])
  assert [p.name for p in tmp_path.iterdir()] == ['model.keras']


@pytest.mark.slow
def test_a_constraint_is_refused(make):
  _, ours = make(
    lambda: keras.layers.Dense(2, kernel_constraint=keras.constraints.NonNeg())
  )
  message = "dense/kernel' has a constraint, which"
  with pytest.raises(ValueError, match=message), built(ours, is_training=True):
    pass


@pytest.mark.slow
@pytest.mark.parametrize(
  'makers, message',
  [
    (
      [lambda: keras.layers.SpectralNormalization(keras.layers.Dense(2))],
      'kernel: the layer assigns to a weight that is trained, which only the',
    ),
    (
      [
        lambda: keras.Input(batch_shape=[4, 3]),
        lambda: keras.layers.Reshape([1, 3]),
        lambda: keras.layers.LSTM(2, stateful=True, name='mine'),
      ],
      "the layer 'mine' is stateful: what one batch leaves to the next would",
    ),
    (
      [
        lambda: keras.layers.Dense(2),
        lambda: keras.layers.Dense(2, name='half', dtype='mixed_float16'),
      ],
      "the layer 'half' computes in float16, .* expected 'mixed_bfloat16'",
    ),
  ],
)
def test_a_layer_that_a_step_cannot_train_is_refused(make, makers, message):
  model, ours = make(*makers)
  with pytest.raises(ValueError, match=message), built(ours, is_training=True):
    pass
  assert 'assign' not in model.weights[0].__dict__
