"""vgg19: its size, at each size of images, dropout, and that it learns."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from distmnist.data import drawn_digits
from distmnist.models import vgg19


def build(size, channels=3, num_classes=10, is_training=True):
  """Returns (logits, {name: shape}) for any number of images."""
  images = tf.placeholder(tf.float32, [None, size, size, channels])
  logits = vgg19.make(num_classes)(images, is_training)
  shapes = {v.op.name: v.shape.as_list() for v in tf.global_variables()}
  return logits, shapes


@pytest.mark.slow
def test_it_has_the_143667240_parameters_of_the_paper(tf_session, set_flags):
  set_flags()
  logits, shapes = build(224, num_classes=1000)
  assert logits.shape.as_list() == [None, 1000]
  assert sum(map(np.prod, shapes.values())) == 143667240
  assert len(shapes) == 2 * 19
  kernels = [s for name, s in shapes.items() if len(s) == 4]
  assert [s[:2] for s in kernels] == [[3, 3]] * 16
  assert [s[3] for s in kernels] == (
    [64] * 2 + [128] * 2 + [256] * 4 + [512] * 8
  )
  assert shapes['dense1/weights'] == [7 * 7 * 512, 4096]
  assert shapes['dense2/weights'] == [4096, 4096]
  assert shapes['softmax/weights'] == [4096, 1000]


@pytest.mark.slow
@pytest.mark.parametrize(
  ('size', 'channels', 'num_inputs'),
  [(28, 1, 512), (33, 3, 2048)],
)
def test_the_first_dense_layer_fits_the_images(
  tf_session, set_flags, size, channels, num_inputs
):
  set_flags()
  logits, shapes = build(size, channels)
  assert logits.shape.as_list() == [None, 10]
  assert shapes['conv1_1/weights'] == [3, 3, channels, 64]
  assert shapes['dense1/weights'] == [num_inputs, 4096]


@pytest.mark.slow
@pytest.mark.parametrize(
  ('flags', 'is_training', 'num_drops'),
  [
    ([], True, 2),
    (['--dropout_rate=0'], True, 0),
    ([], False, 0),
  ],
)
def test_training_drops_units_of_both_dense_layers(
  tf_session, set_flags, flags, is_training, num_drops
):
  set_flags(*flags)
  build(32, is_training=is_training)
  drops = [
    op
    for op in tf.get_default_graph().get_operations()
    if op.type == 'StatelessRandomUniformV2' and op.name.startswith('dropout')
  ]
  assert len(drops) == num_drops


@pytest.mark.slow
def test_the_first_weights_are_those_of_he(tf_session, set_flags):
  set_flags()
  tf.set_random_seed(3)
  build(32)
  variables = {v.op.name: v for v in tf.global_variables()}
  for name, fan_in in (('conv3_1', 9 * 128), ('dense1', 512)):
    weights = variables[f'{name}/weights']
    tf_session.run(weights.initializer)
    found = tf_session.run(weights).std()
    assert found == pytest.approx(np.sqrt(2 / fan_in), rel=0.02)


@pytest.mark.daily
@pytest.mark.slow
def test_a_few_steps_lower_the_loss(tf_session, set_flags):
  set_flags('--dropout_rate=0')
  tf.set_random_seed(1)
  images, labels = drawn_digits.draw(8, 0, size=32, channels=3)
  logits = vgg19.make(10)(
    tf.constant(images / 255, tf.float32), is_training=True
  )
  loss = tf.losses.sparse_softmax_cross_entropy(labels, logits)
  train_op = tf.train.MomentumOptimizer(0.001, 0.9).minimize(loss)
  tf_session.run(tf.global_variables_initializer())
  losses = [tf_session.run([loss, train_op])[0] for _ in range(15)]
  assert np.mean(losses[-3:]) < 0.8 * np.mean(losses[:3]), losses
