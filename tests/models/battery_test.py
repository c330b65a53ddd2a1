"""What every model does; for the contract see nn/layers.py."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from distmnist.common import registry
from distmnist.common.names import MODELS
from distmnist.transport import sharding

NAMES = registry.names(MODELS)
# Of 24 and 39 million parameters, and up to a second a step.
LARGE = 'resnet50', 'vgg19'
SMALL = [name for name in NAMES if name not in LARGE]
QUICK = 'mlp', 'softmax'
each_model = pytest.mark.parametrize(
  'model',
  [
    pytest.param(model, marks=[pytest.mark.slow] * (model not in QUICK))
    for model in NAMES
  ],
)
RNG = np.random.default_rng(0)
IMAGES = RNG.random((8, 28, 28, 1), np.float32)
LABELS = RNG.integers(0, 10, 8)


@pytest.fixture
def make_model(set_flags):
  """Returns make(name, *flags, num_classes=10) -> build."""

  def make(name, *words, num_classes=10):
    set_flags(*words)
    return registry.load(MODELS, name).make(num_classes)

  return make


@pytest.mark.slow
@pytest.mark.daily(but=SMALL)
@each_model
def test_logits_are_a_row_an_image_and_a_column_a_class(
  tf_session, make_model, model
):
  images = tf.placeholder(tf.float32, [None, 28, 28, 1])
  logits = make_model(model, num_classes=7)(images, is_training=False)
  assert logits.dtype == tf.float32
  assert logits.shape.as_list() == [None, 7]
  tf_session.run(tf.global_variables_initializer())
  found = tf_session.run(logits, {images: IMAGES})
  assert found.shape == (8, 7)
  assert np.isfinite(found).all()
  # An image's logits are its own: the rest of the batch does not matter.
  alone = tf_session.run(logits, {images: IMAGES[2:3]})
  np.testing.assert_allclose(alone[0], found[2], rtol=1e-4, atol=1e-4)


@pytest.mark.slow
@pytest.mark.daily(but=SMALL)
@each_model
def test_evaluation_shares_the_variables_of_training(
  tf_session, make_model, model
):
  build = make_model(model)
  build(tf.constant(IMAGES), is_training=True)
  names = [v.op.name for v in tf.global_variables()]
  trained = [v.op.name for v in tf.trainable_variables()]
  assert len(trained) >= 2
  # The rest is what evaluation uses instead of the batch.
  assert all('/moving_' in name for name in set(names) - set(trained))
  with tf.variable_scope(tf.get_variable_scope(), reuse=True):
    logits = build(tf.constant(IMAGES), is_training=False)
  assert [v.op.name for v in tf.global_variables()] == names
  tf_session.run(tf.global_variables_initializer())
  first, second = tf_session.run(logits), tf_session.run(logits)
  assert first.tolist() == second.tolist()


@pytest.mark.slow
@pytest.mark.daily(but=SMALL)
@each_model
def test_a_model_is_cut_into_shards_and_says_nothing_of_devices(
  tf_session, make_model, model
):
  with sharding.sharded(2):
    make_model(model)(tf.constant(IMAGES), is_training=True)
  names = [v.op.name for v in tf.trainable_variables()]
  # A kernel of 5 rows and 10 biases alike can be cut in two.
  assert {name[-len('/part_0') :] for name in names} == {'/part_0', '/part_1'}
  devices = {op.device for op in tf.get_default_graph().get_operations()}
  assert devices == {''}


# That the large ones learn is seen in tests of their own.
@pytest.mark.slow
@pytest.mark.parametrize('model', SMALL)
def test_a_model_learns_a_batch_by_heart(tf_session, make_model, model):
  tf.set_random_seed(1)
  logits = make_model(model)(tf.constant(IMAGES), is_training=False)
  loss = tf.losses.sparse_softmax_cross_entropy(LABELS, logits)
  train_op = tf.train.AdamOptimizer(0.003).minimize(loss)
  tf_session.run(tf.global_variables_initializer())
  for _ in range(50):
    tf_session.run(train_op)
  predictions = tf_session.run(logits).argmax(axis=1)
  assert predictions.tolist() == LABELS.tolist()


@pytest.mark.slow
@pytest.mark.parametrize('model', QUICK)
def test_the_seed_decides_the_first_weights(make_model, model):
  build = make_model(model)

  def build_weights(seed):
    with tf.Graph().as_default(), tf.Session() as session:
      tf.set_random_seed(seed)
      build(tf.constant(IMAGES), is_training=True)
      weights = tf.global_variables()[0]
      session.run(weights.initializer)
      return session.run(weights)

  one, again, other = build_weights(1), build_weights(1), build_weights(2)
  assert (one == again).all()
  assert (one == other).mean() < 0.01
