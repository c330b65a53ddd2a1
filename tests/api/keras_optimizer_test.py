"""keras_optimizer: a compiled optimizer's steps are those of its flags."""

import keras
import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from distmnist import runtime
from distmnist.api import keras_optimizer, process
from distmnist.nn import optimizers


def without_decay(optimizer):
  optimizer.exclude_from_weight_decay(var_names=['bias'])
  return optimizer


@pytest.mark.parametrize(
  'optimizer, settings',
  [
    (
      lambda: 'adam',
      {'optimizer': 'adam', 'learning_rate': 0.001, 'epsilon': 1e-7},
    ),
    (
      lambda: keras.optimizers.SGD(0.5, momentum=0.75, nesterov=True),
      {'optimizer': 'nesterov', 'learning_rate': 0.5, 'momentum': 0.75},
    ),
    (
      lambda: keras.optimizers.Adagrad(0.25, global_clipnorm=2.0),
      {'optimizer': 'adagrad', 'learning_rate': 0.25, 'clip_norm': 2.0},
    ),
    (lambda: 'sgd', {'optimizer': 'sgd', 'learning_rate': 0.01}),
  ],
)
def test_the_optimizer_is_the_one_that_is_compiled(optimizer, settings):
  with runtime.eagerly():
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile(optimizer(), 'mse')
    found = keras_optimizer.read(model)
  assert found == pytest.approx(settings)


@pytest.mark.slow
@pytest.mark.parametrize(
  'make_optimizer',
  [
    lambda: keras.optimizers.SGD(0.5, momentum=0.75),
    lambda: keras.optimizers.SGD(0.5, 0.75, nesterov=True, weight_decay=0.5),
    lambda: keras.optimizers.Adam(0.25, epsilon=0.1, global_clipnorm=0.3),
    lambda: keras.optimizers.Adam(0.25, weight_decay=0.1),
    lambda: keras.optimizers.AdamW(0.25),
    lambda: keras.optimizers.Adagrad(0.25),
    lambda: keras.optimizers.RMSprop(0.25),
    lambda: keras.optimizers.RMSprop(0.25, momentum=0.5),
  ],
)
def test_its_steps_are_those_of_keras(tf_session, set_flags, make_optimizer):
  start = [np.float32([[1, -2]]), np.float32([3, 0.5])]
  # Some so small that what is added to their roots counts.
  rng = np.random.default_rng(2)
  steps = [
    [np.float32(rng.normal(size=w.shape) * [1, 1e-7]) for w in start]
    for _ in range(3)
  ]
  with runtime.eagerly():
    model = keras.Sequential([keras.Input([1]), keras.layers.Dense(2)])
    model.compile(make_optimizer(), 'mse')
    model.set_weights(start)
    for step in steps:
      model.optimizer.apply(
        [keras.ops.convert_to_tensor(g) for g in step],
        model.trainable_variables,
      )
    expected = model.get_weights()
    words = process.make_words(None, keras_optimizer.read(model))
  set_flags(*words)
  make, _ = optimizers.from_flags(tf.train.get_or_create_global_step(), 1)
  weights = [
    tf.get_variable(f'w{i}', initializer=w) for i, w in enumerate(start)
  ]
  gradients = [tf.placeholder(tf.float32, w.shape) for w in start]
  products = [w * g for w, g in zip(weights, gradients, strict=True)]
  train_op = make().minimize(tf.add_n([tf.reduce_sum(p) for p in products]))
  tf_session.run(tf.global_variables_initializer())
  for step in steps:
    tf_session.run(train_op, dict(zip(gradients, step, strict=True)))
  for found, wanted in zip(tf_session.run(weights), expected, strict=True):
    np.testing.assert_allclose(found, wanted, rtol=1e-5)


def test_one_that_is_not_known_and_none_are_refused():
  with runtime.eagerly():
    model = keras.Sequential([keras.layers.Dense(1)])
    with pytest.raises(ValueError, match='the model is not compiled'):
      keras_optimizer.read(model)
    model.compile('lion', 'mse')
    with pytest.raises(ValueError, match='compiled with Lion: expected one of'):
      keras_optimizer.read(model)


@pytest.mark.parametrize(
  'optimizer, message',
  [
    (
      lambda: keras.optimizers.Adam(beta_1=0.5),
      r'Adam\(beta_1=0.5\), which no',
    ),
    (lambda: keras.optimizers.SGD(clipnorm=1.0), r'SGD\(clipnorm=1.0\), which'),
    (
      lambda: without_decay(keras.optimizers.AdamW()),
      'compiled with exclude_from_weight_decay, which no flag can set',
    ),
    (
      lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam()),
      "no update rule here does: expected 'mixed_bfloat16', or float32",
    ),
  ],
)
def test_what_no_flag_says_is_refused(optimizer, message):
  with runtime.eagerly():
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile(optimizer(), 'mse')
    with pytest.raises(ValueError, match=message):
      keras_optimizer.read(model)


def test_a_rate_that_is_a_function_is_refused():
  with runtime.eagerly():
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(half), 'mse')
    with pytest.raises(ValueError, match='a function as its learning rate'):
      keras_optimizer.read_schedule(model)


def half():
  return 0.5


def test_a_schedule_has_a_rate_at_the_steps_that_are_tried():
  schedules = keras.optimizers.schedules
  with runtime.eagerly():
    for rate, step in [
      (schedules.ExponentialDecay(0.1, 100, 0.9), None),
      (schedules.ExponentialDecay(0.1, 100, -0.9), 1),
      (schedules.PiecewiseConstantDecay([50], [0.1, -0.1]), 60),
    ]:
      model = keras.Sequential([keras.layers.Dense(1)])
      model.compile(keras.optimizers.SGD(rate), 'mse')
      if step is None:
        keras_optimizer.check_schedule(model, [0, 1, 60])
        continue
      said = f'^the schedule {type(rate).__name__} gives .* at step {step}: '
      with pytest.raises(ValueError, match=said):
        keras_optimizer.check_schedule(model, [0, 1, 60])
