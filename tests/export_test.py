"""export: a checkpoint of any shape becomes a SavedModel that computes it."""

import json
import os
import pathlib
import re
import subprocess
import sys

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from distmnist import export
from distmnist.common import registry
from distmnist.common.names import MODELS
from distmnist.data import image_ops
from distmnist.logdir import checkpoints
from distmnist.nn import batch_norm, layers
from distmnist.problems import images as problem_images
from distmnist.serving import saved_model
from distmnist.transport import sharding
from tests.models import battery_test
from tests.support import problems, programs
from tests.support.runner import SMALL, read_report

SHAPE = 3, 4, 1
IMAGES = np.random.default_rng(0).integers(0, 256, (9, *SHAPE), np.uint8)


@pytest.fixture(autouse=True)
def default_flags(set_flags):
  set_flags()


def build_net(images, is_training):
  del is_training
  return layers.dense(layers.flatten(images), 5, 'softmax')


def save(path, build, num_ps, **values):
  """Saves what `num_ps` ps hold after a start.

  Args:
    path: path.
    build: build(images, is_training) -> logits.
    num_ps: int.
    values: name of a variable with _ for / -> array.

  Returns:
    (path of the checkpoint, dict of name -> whole array).
  """
  with tf.Graph().as_default(), tf.Session() as session:
    tf.train.get_or_create_global_step()
    with sharding.sharded(num_ps):
      logits = build(tf.zeros([2, *SHAPE]), is_training=True)
    tf.train.AdamOptimizer().minimize(tf.reduce_sum(logits))
    session.run(tf.global_variables_initializer())
    for variable in tf.global_variables():
      name = variable.op.name.replace('/', '_')
      if name in values:
        session.run(variable.assign(values[name]))
    found = checkpoints.fetch_whole(session, tf.global_variables())
    return tf.train.Saver().save(session, str(path)), found


def compute_softmax(logits):
  powers = np.exp(logits - logits.max(axis=1, keepdims=True))
  return powers / powers.sum(axis=1, keepdims=True)


def predict(export_dir, images):
  """Returns (classes, probabilities) of images."""
  found = saved_model.Model(str(export_dir)).run({'images': images})
  return found['classes'], found['probabilities']


def check_predictions(export_dir, expected, images=IMAGES):
  classes, probabilities = predict(export_dir, images)
  np.testing.assert_allclose(probabilities, expected, rtol=1e-4, atol=1e-6)
  assert classes.tolist() == probabilities.argmax(axis=1).tolist()


def run_export(build, shape, *args):
  spec = tf.TensorSpec(shape, tf.uint8, 'images')
  return export.export(problems.of_images(build), spec, *args)


@pytest.mark.slow
@pytest.mark.parametrize('num_ps', [1, 3])
def test_any_number_of_shards_becomes_one_model(tmp_path, num_ps):
  path, values = save(tmp_path / 'x', build_net, num_ps)
  inputs, outputs, num_bytes = run_export(
    build_net, SHAPE, path, str(tmp_path / 'model')
  )
  assert inputs['images'].shape.as_list() == [None, 3, 4, 1]
  assert outputs['probabilities'].shape.as_list() == [None, 5]
  # Adam's slots and the step are left behind.
  model = tf.train.load_checkpoint(
    str(tmp_path / 'model' / 'variables' / 'variables')
  )
  assert model.get_variable_to_shape_map() == {
    'softmax/weights': [12, 5],
    'softmax/biases': [5],
  }
  assert num_bytes > 4 * (12 * 5 + 5)
  logits = IMAGES.reshape(9, 12) / 255 @ values['softmax/weights']
  check_predictions(
    tmp_path / 'model', compute_softmax(logits + values['softmax/biases'])
  )


def build_normed(images, is_training):
  return layers.flatten(batch_norm.batch_norm(images, 'norm', is_training))


@pytest.mark.slow
def test_batch_norm_goes_by_its_averages(tmp_path):
  path, _ = save(
    tmp_path / 'x',
    build_normed,
    2,
    norm_moving_mean=[0.25],
    norm_moving_variance=[4],
  )
  run_export(build_normed, SHAPE, path, str(tmp_path / 'model'))
  logits = (IMAGES.reshape(9, 12) / 255 - 0.25) / np.sqrt(4 + 1e-5)
  check_predictions(tmp_path / 'model', compute_softmax(logits))
  # An image's result is its own, whatever else is in the batch.
  check_predictions(
    tmp_path / 'model', compute_softmax(logits[3:4]), IMAGES[3:4]
  )


# The large ones are built from the same layers and batch norm, as above.
@pytest.mark.parametrize('model', battery_test.SMALL)
@pytest.mark.slow
def test_each_small_model_is_exported_as_it_is_evaluated(tmp_path, model):
  build = registry.load(MODELS, model).make(7)
  images = np.random.default_rng(1).integers(0, 256, (3, 28, 28, 1), np.uint8)
  with tf.Graph().as_default(), tf.Session() as session:
    logits = build(image_ops.scale(images), is_training=False)
    tf.train.get_or_create_global_step()
    session.run(tf.global_variables_initializer())
    path = tf.train.Saver().save(session, str(tmp_path / 'x'))
    expected = compute_softmax(session.run(logits))
  folder = tmp_path / 'model'
  run_export(build, (28, 28, 1), path, str(folder))
  model = saved_model.Model(str(folder))
  assert model.find_image_shape() == (28, 28, 1)
  assert model.outputs['probabilities'].shape[-1] == 7
  check_predictions(folder, expected, images)


@pytest.mark.daily
@pytest.mark.slow
@pytest.mark.parametrize(
  'strategy, num_ps, flags',
  [
    ('async_sgd', 3, []),
    ('sync_sgd', 2, []),
    ('easgd', 2, ['--communication_period=3']),
    ('bmuf', 2, ['--communication_period=3', '--optimizer=sgd']),
    ('ring_allreduce', 0, []),
  ],
)
def test_what_any_rule_and_cluster_has_trained_is_exported(
  set_flags, tasks, tmp_path, strategy, num_ps, flags
):
  run, folder = tmp_path / 'run', tmp_path / 'model'
  programs.run_forked(
    *('launch', f'--num_ps={num_ps}', '--num_workers=2', '--', *SMALL),
    *(f'--strategy={strategy}', '--train_steps=60', f'--logdir={run}'),
    *flags,
  )
  task = tasks.run(
    tmp_path / 'log',
    f'--checkpoint={checkpoints.find_latest(str(run))}',
    f'--export_dir={folder}',
    module='distmnist.export',
  )
  assert task.code == 0, task.output
  assert re.fullmatch(
    r'step \d+  softmax on synthetic, images \[n, 28, 28, 1\] -> 10 classes, '
    rf'0\.0 MB  {folder}\n',
    task.output,
  )
  set_flags(*SMALL)
  images, labels = problem_images.load('test')
  classes, _ = predict(folder, images)
  report = read_report(run)
  assert (classes == labels).mean() == report['test_accuracy']


_TF2 = """
import json, sys
import numpy as np
import tensorflow as tf
assert tf.executing_eagerly()
images = np.load(sys.argv[1])
for folder in sys.argv[2:]:
  serve = tf.saved_model.load(folder).signatures['serving_default']
  found = serve(images=tf.constant(images))
  print(json.dumps({
    'takes': str(serve.structured_input_signature[1]['images'].shape),
    'kinds': {key: value.dtype.name for key, value in found.items()},
    **{key: value.numpy().tolist() for key, value in found.items()},
  }))
"""


@pytest.mark.slow
def test_tensorflow_2_loads_it_with_no_code_of_ours(tmp_path):
  folders = []
  for build in build_net, build_normed:
    path, _ = save(tmp_path / f'{build.__name__}.ckpt', build, 2)
    folders.append(str(tmp_path / build.__name__))
    run_export(build, SHAPE, path, folders[-1])
  np.save(tmp_path / 'images.npy', IMAGES)
  done = subprocess.run(
    [sys.executable, '-c', _TF2, tmp_path / 'images.npy', *folders],
    env={**os.environ, 'TF_CPP_MIN_LOG_LEVEL': '3', 'CUDA_VISIBLE_DEVICES': ''},
    cwd=pathlib.Path('/'),
    capture_output=True,
    text=True,
    timeout=200,
  )
  assert done.returncode == 0, done.stderr
  for folder, line in zip(folders, done.stdout.splitlines(), strict=True):
    found = json.loads(line)
    assert found['takes'] == '(None, 3, 4, 1)'
    assert found['kinds'] == {'classes': 'int64', 'probabilities': 'float32'}
    classes, probabilities = predict(folder, IMAGES)
    assert found['classes'] == classes.tolist()
    np.testing.assert_allclose(found['probabilities'], probabilities, rtol=1e-5)
