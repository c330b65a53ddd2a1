"""losses: what regularizers and collections add, under each kind of rule."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from distmnist.cluster import cluster
from distmnist.common import registry
from distmnist.common.names import STRATEGIES
from distmnist.data import input_pipeline
from distmnist.exchange.copies import local_copies
from distmnist.training import step as step_lib
from tests.support import problems
from tests.support.towers import (
  CONFIG,
  IMAGES,
  LABELS,
  Towers,
  make_member,
)


@pytest.mark.parametrize(
  'kind, name',
  [
    (cluster.Cluster, 'async_sgd'),
    (Towers, 'downpour'),
    (Towers, 'easgd'),
  ],
)
@pytest.mark.slow
def test_a_regularizer_is_part_of_the_loss_and_of_its_gradient(
  set_flags, kind, name
):
  set_flags()

  def build_model(images, is_training):
    weights = tf.get_variable(
      'weights',
      [64, 3],
      initializer=tf.ones_initializer(),
      regularizer=lambda w: 5 * tf.reduce_sum(w),
    )
    return 0 * tf.reshape(images, [-1, 64]) @ weights

  member = make_member(kind)
  rule = registry.load(STRATEGIES, name).make(member)
  with tf.Graph().as_default(), tf.Session(config=CONFIG) as session:
    batch = input_pipeline.Slice(
      (tf.constant(IMAGES[0]), tf.constant(LABELS[0]))
    )
    step = step_lib.build_step(
      member, rule, problems.of_images(build_model), [batch]
    )
    session.run(tf.global_variables_initializer())
    session.run(tf.local_variables_initializer())
    loss = session.run(step.loss)
    session.run(step.update.train_op)
    views = local_copies.get_all() or step.center
    changed = session.run(views[0])
  assert loss == pytest.approx(np.log(3) + 5 * 64 * 3)
  np.testing.assert_allclose(changed, 1 - 0.01 * 5, rtol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize('how', ['total', 'regularization', 'given'])
def test_what_build_puts_in_the_collections_counts_once(
  tf_session, set_flags, how
):
  set_flags('--num_gpus=0', '--communication_period=1')

  def build(images, is_training):
    weights = tf.get_variable(
      'w',
      [3],
      initializer=tf.ones_initializer(),
      regularizer=tf.reduce_sum,  # 3
      use_resource=False,
    )
    tf.losses.add_loss(10 * weights[0])
    return tf.zeros_like(images[:, 0, 0, 0])[:, None] + weights

  problem = problems.of_images(build)

  def loss(y, outputs):
    tf.losses.mean_squared_error(tf.zeros_like(outputs), 10 * outputs)  # 100
    if how == 'total':
      return tf.losses.get_total_loss()
    return 100.0 + tf.losses.get_regularization_loss() * (how != 'given')

  problem.module.loss = loss
  images = tf.placeholder(tf.float32, IMAGES.shape[1:])
  labels = tf.placeholder(tf.int32, LABELS.shape[1:])
  member = make_member(cluster.Cluster)
  rule = registry.load(STRATEGIES, 'easgd').make(member)
  step = step_lib.build_step(
    member, rule, problem, [input_pipeline.Slice((images, labels))]
  )
  tf_session.run(tf.global_variables_initializer())
  tf_session.run(tf.local_variables_initializer())
  found = tf_session.run(step.loss, {images: IMAGES[0], labels: LABELS[0]})
  assert found == pytest.approx(113)
