"""resnet50: its size and stem, its batch norm in training and evaluation."""

import re

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from distmnist.cluster import cluster
from distmnist.data import drawn_digits
from distmnist.models import resnet50
from distmnist.nn import batch_norm
from distmnist.transport import model_state
from tests.support.runner import SMALL


def build(size, channels=3, num_classes=10, is_training=True):
  """Returns (logits, {name: shape}), of trainable variables."""
  images = tf.placeholder(tf.float32, [None, size, size, channels])
  logits = resnet50.make(num_classes)(images, is_training)
  shapes = {v.op.name: v.shape.as_list() for v in tf.trainable_variables()}
  return logits, shapes


def get_stage_sizes():
  """Returns [(height, filters)] of the outputs of the stages."""
  graph = tf.get_default_graph()
  ends = [
    graph.get_tensor_by_name(f'{block}/Relu_2:0')
    for block in ('block1_3', 'block2_4', 'block3_6', 'block4_3')
  ]
  assert all(end.shape[1] == end.shape[2] for end in ends)
  return [tuple(end.shape.as_list()[2:]) for end in ends]


@pytest.mark.slow
def test_it_has_the_25557032_parameters_of_resnet_50(tf_session, monkeypatch):
  changed = []
  monkeypatch.setattr(
    model_state, 'change', lambda variable, _: changed.append(variable)
  )
  logits, shapes = build(224, num_classes=1000)
  assert logits.shape.as_list() == [None, 1000]
  assert sum(map(np.prod, shapes.values())) == 25557032
  assert shapes['stem/weights'] == [7, 7, 3, 64]
  kernels = [s for s in shapes.values() if len(s) == 4]
  # 16 bottlenecks of three, four shortcuts of one, the stem.
  assert len(kernels) == 3 * 16 + 4 + 1
  assert get_stage_sizes() == [(56, 256), (28, 512), (14, 1024), (7, 2048)]
  # The two averages of each batch norm, with a change each.
  averages = set(tf.global_variables()) - set(tf.trainable_variables())
  assert len(averages) == 2 * 53
  assert len(changed) == 2 * 53 and set(changed) == averages


@pytest.mark.slow
@pytest.mark.parametrize(
  ('size', 'channels', 'kernel', 'sizes'),
  [
    (28, 1, 3, [32, 16, 8, 4]),
    (64, 3, 7, [16, 8, 4, 2]),
  ],
)
def test_small_images_have_a_small_stem(
  tf_session, size, channels, kernel, sizes
):
  logits, shapes = build(size, channels, is_training=False)
  assert logits.shape.as_list() == [None, 10]
  assert shapes['stem/weights'] == [kernel, kernel, channels, 64]
  assert [height for height, _ in get_stage_sizes()] == sizes
  assert tf.get_collection(tf.GraphKeys.UPDATE_OPS) == []


@pytest.mark.slow
def test_the_stride_is_in_the_3x3_and_a_bottleneck_starts_as_its_way_around(
  tf_session,
):
  build(32)
  graph = tf.get_default_graph()
  strides = {
    name: graph.get_operation_by_name(f'block2_1/{name}/Conv2D').get_attr(
      'strides'
    )[1]
    for name in ('conv1', 'conv2', 'conv3', 'shortcut')
  }
  assert strides == {'conv1': 1, 'conv2': 2, 'conv3': 1, 'shortcut': 2}
  gammas = [v for v in tf.global_variables() if v.op.name.endswith('/gamma')]
  tf_session.run([gamma.initializer for gamma in gammas])
  for gamma, gamma_v in zip(gammas, tf_session.run(gammas), strict=True):
    assert (gamma_v == float('/conv3/' not in gamma.op.name)).all()


@pytest.mark.daily
@pytest.mark.slow
def test_a_few_steps_lower_the_loss_and_the_averages_follow(tf_session):
  tf.set_random_seed(1)
  images, labels = drawn_digits.draw(8, 0, size=32, channels=3)
  images = tf.constant(images / 255, tf.float32)
  model = resnet50.make(10)

  def build_loss(is_training):
    logits = model(images, is_training)
    return tf.losses.sparse_softmax_cross_entropy(labels, logits)

  state = model_state.ModelState(cluster.Cluster(), is_lock_step=False)
  state.activate()
  loss = build_loss(is_training=True)
  state.build_updates()
  optimizer = tf.train.MomentumOptimizer(0.01, 0.9)
  train_op = batch_norm.after_updates(tf.constant(0)), optimizer.minimize(loss)
  with tf.variable_scope(tf.get_variable_scope(), reuse=True):
    evaluated = build_loss(is_training=False)
  tf_session.run(tf.global_variables_initializer())
  losses = [tf_session.run([loss, train_op])[0] for _ in range(15)]
  assert np.mean(losses[-3:]) < 0.3 * np.mean(losses[:3]), losses
  assert tf_session.run(evaluated) < 0.7 * losses[0]


@pytest.mark.daily
@pytest.mark.slow
def test_a_run_on_a_ps_saves_the_averages_and_evaluates_them(
  tasks, make_real_cluster, tmp_path
):
  logdir = f'--logdir={tmp_path}/run'
  ps, workers = make_real_cluster(1, 1).start_all(
    *SMALL,
    '--model=resnet50',
    '--optimizer=sgd',
    '--synthetic_train_images=8',
    '--synthetic_test_images=4',
    '--validation_images=0',
    '--batch_size=2',
    '--train_steps=3',
    logdir,
  )
  assert tasks.wait(*ps, *workers, timeout_secs=200) == [0, 0]
  [told] = re.findall(r'^test accuracy +(\d\.\d{4})$', workers[0].output, re.M)
  saved = tf.train.load_checkpoint(str(tmp_path / 'run/model.ckpt-3'))
  mean = saved.get_tensor('stem/norm/moving_mean')
  variance = saved.get_tensor('stem/norm/moving_variance')
  assert mean.any() and (variance != 1).all()
  task = tasks.run(tmp_path / 'log', logdir, module='distmnist.evaluate')
  assert task.code == 0, task.output
  assert f'test accuracy {told}' in task.output
