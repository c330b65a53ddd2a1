"""layers: each against NumPy, the first weights, the flags."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from distmnist.common import cli
from distmnist.nn import layers
from tests.support.variables import run_with

RNG = np.random.default_rng(11)


def test_dense_is_inputs_times_weights_plus_biases(tf_session):
  inputs, weights = RNG.normal(size=(2, 3)), RNG.normal(size=(3, 4))
  biases = RNG.normal(size=4)
  outputs = layers.dense(tf.constant(inputs, tf.float32), 4, 'layer')
  names = [v.op.name for v in tf.trainable_variables()]
  assert names == ['layer/weights', 'layer/biases']
  found = run_with(tf_session, outputs, weights=weights, biases=biases)
  np.testing.assert_allclose(found, inputs @ weights + biases, rtol=1e-5)


@pytest.mark.parametrize('stride, has_biases', [(1, True), (2, False)])
def test_conv_pads_with_zeros_and_takes_a_pixel_a_stride(
  tf_session, stride, has_biases
):
  inputs, weights = RNG.normal(size=(2, 5, 7, 2)), RNG.normal(size=(3, 3, 2, 3))
  given = {'weights': weights}
  if has_biases:
    given['biases'] = RNG.normal(size=3)
  outputs = layers.conv(
    *(tf.constant(inputs, tf.float32), 3, 3, 'layer'),
    stride=stride,
    has_biases=has_biases,
  )
  names = [v.op.name for v in tf.global_variables()]
  assert names == [f'layer/{name}' for name in given]
  found = run_with(tf_session, outputs, **given)
  padded = np.pad(inputs, [(0, 0), (1, 1), (1, 1), (0, 0)])
  expected = np.zeros((2, -(-5 // stride), -(-7 // stride), 3))
  for row, column in np.ndindex(*expected.shape[1:3]):
    y, x = stride * row, stride * column
    patch = padded[:, y : y + 3, x : x + 3]
    expected[:, row, column] = np.einsum('bhwc,hwcf->bf', patch, weights)
  expected += given.get('biases', 0)
  np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_max_pool_halves_the_size_and_rounds_up(tf_session):
  inputs = np.arange(15.0).reshape(1, 3, 5, 1)
  found = tf_session.run(layers.max_pool(tf.constant(inputs)))
  assert found[0, :, :, 0].tolist() == [[6, 8, 9], [11, 13, 14]]
  found = tf_session.run(layers.max_pool(tf.constant(inputs), size=3))
  assert found[0, :, :, 0].tolist() == [[6, 8, 9], [11, 13, 14]]
  # 3 x 3 around the pixels (0, 0), (0, 2), ...: they overlap.
  inputs = np.array([0, 1, 5, 1, 0.0]).reshape(1, 1, 5, 1)
  found = tf_session.run(layers.max_pool(tf.constant(inputs), size=3))
  assert found.ravel().tolist() == [1, 5, 1]


def test_small_images_get_zeros_around_them_and_others_stay(tf_session):
  images = tf.ones([2, 3, 6, 1])
  found = tf_session.run(layers.pad(images, 6))
  assert found.shape == (2, 6, 6, 1)
  assert found[0, :, 0, 0].tolist() == [0, 1, 1, 1, 0, 0]
  assert layers.pad(images, 3) is images


def test_flatten_keeps_the_batch_of_any_size(tf_session):
  inputs = np.arange(12).reshape(2, 3, 2, 1)
  found = tf_session.run(layers.flatten(tf.constant(inputs)))
  assert found.tolist() == [[0, 1, 2, 3, 4, 5], [6, 7, 8, 9, 10, 11]]
  images = tf.placeholder(tf.float32, [None, 28, 28, 1])  # Any batch.
  assert layers.flatten(images).shape.as_list() == [None, 784]


@pytest.mark.parametrize(
  'name, stddev, limit',
  [
    ('normal', 1.0, None),
    # Uniform in +-sqrt(6 / (in + out)).
    ('glorot', np.sqrt(2 / 500), np.sqrt(6 / 500)),
    # Normal, cut off at two standard deviations; stddev is of what is left.
    ('he', np.sqrt(2 / 300), 2 * np.sqrt(2 / 300) / 0.8796),
  ],
)
def test_an_initializer_has_the_spread_of_its_paper(
  tf_session, name, stddev, limit
):
  tf.set_random_seed(1)
  weights = tf_session.run(layers.make_initializer(name, 'w')([300, 200]))
  assert weights.mean() == pytest.approx(0, abs=0.02 * stddev)
  assert weights.std() == pytest.approx(stddev, rel=0.02)
  if limit:
    assert 0.98 * limit < abs(weights).max() <= 1.001 * limit


def test_biases_start_at_zero(tf_session):
  inputs = tf.zeros([1, 4, 4, 2])
  layers.dense(layers.flatten(layers.conv(inputs, 3, 3, 'a')), 5, 'b')
  tf_session.run(tf.global_variables_initializer())
  biases = {
    v.op.name: tf_session.run(v).tolist()
    for v in tf.global_variables()
    if v.op.name.endswith('biases')
  }
  assert biases == {'a/biases': [0] * 3, 'b/biases': [0] * 5}


def test_hidden_units_by_flag(set_flags):
  set_flags()
  assert layers.hidden_units_from_flags([160] * 5) == (160,) * 5
  set_flags('--hidden_units=300,100')
  assert layers.hidden_units_from_flags([160] * 5) == (300, 100)


@pytest.mark.parametrize('words', ['', '0', '100,', '-5', '1.5', 'many', '²'])
def test_hidden_units_that_are_no_sizes_are_refused(set_flags, words):
  set_flags(f'--hidden_units={words}')
  with pytest.raises(
    cli.UsageError,
    match=f'^--hidden_units={words}: expected sizes from 1 to 1,000,000',
  ):
    layers.hidden_units_from_flags([100])


def test_the_initializer_by_flag(set_flags):
  set_flags()
  assert layers.initializer_from_flags('normal') == 'normal'
  set_flags('--initializer=he')
  assert layers.initializer_from_flags('normal') == 'he'


@pytest.mark.parametrize('is_last_linear', [False, True])
def test_relu_is_between_the_layers(tf_session, is_last_linear):
  inputs = tf.constant(np.random.default_rng(0).normal(size=[5, 3]), tf.float32)
  found = layers.dense_stack(inputs, [4, 2], 'net', is_last_linear)
  assert [v.op.name for v in tf.trainable_variables()] == [
    f'net/dense_{i}/{kind}' for i in (0, 1) for kind in ('weights', 'biases')
  ]
  tf_session.run(tf.global_variables_initializer())
  value, x, (w, _, u, _) = tf_session.run(
    [found, inputs, tf.trainable_variables()]
  )
  expected = np.maximum(x @ w, 0) @ u
  if not is_last_linear:
    expected = np.maximum(expected, 0)
  np.testing.assert_allclose(value, expected, rtol=1e-5, atol=1e-6)
