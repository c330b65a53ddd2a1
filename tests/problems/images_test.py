"""images: data set and model by flags."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from distmnist.common import registry
from distmnist.common.names import DATASETS
from distmnist.problems import images as problem

SMALL = (
  '--dataset=synthetic',
  '--synthetic_train_images=20',
  '--synthetic_test_images=5',
)


@pytest.mark.slow
def test_the_first_images_are_kept_for_validation(set_flags):
  set_flags(*SMALL, '--validation_images=0')
  whole, none = problem.load('train'), problem.load('validation')
  assert [array.shape for array in none] == [(0, 28, 28, 1), (0,)]
  set_flags('--validation_images=6')
  train, validation = problem.load('train'), problem.load('validation')
  assert train[0].shape == (14, 28, 28, 1)
  assert validation[0].shape == (6, 28, 28, 1)
  for parts, array in zip(
    zip(validation, train, strict=True), whole, strict=True
  ):
    assert (np.concatenate(parts) == array).all()


@pytest.mark.slow
def test_the_test_split_is_another_one(set_flags):
  set_flags(*SMALL, '--validation_images=0')
  images, labels = problem.load('test')
  train, _ = problem.load('train')
  assert (images.dtype, labels.dtype) == (np.uint8, np.int32)
  assert images.shape == (5, 28, 28, 1)
  assert (images != train[:5]).any()


@pytest.mark.slow
def test_images_and_classes_may_be_others(tf_session, set_flags):
  set_flags(
    *SMALL,
    '--model=softmax',
    '--validation_images=0',
    '--synthetic_image_size=32',
    '--synthetic_channels=3',
    '--synthetic_classes=12',
  )
  train, _ = problem.load('train')
  assert train.shape == (20, 32, 32, 3)
  assert problem.image_shape() == (32, 32, 3)
  logits = problem.build(tf.zeros([3, 32, 32, 3]), is_training=True)
  assert logits.shape.as_list() == [3, 12]


@pytest.mark.parametrize('name', registry.names(DATASETS))
def test_each_data_set_says_how_many_classes_it_has(set_flags, name):
  set_flags()
  assert registry.load(DATASETS, name).num_classes() == 10


def test_the_data_dir_is_the_flag_then_the_environment_then_a_cache(
  set_flags, monkeypatch
):
  monkeypatch.setenv('HOME', '/home/ada')
  monkeypatch.setenv('DISTMNIST_DATA_DIR', '~/env')
  set_flags('--data_dir=~/flag')
  assert problem.data_dir_from_flags() == '/home/ada/flag'
  set_flags('--data_dir=')
  assert problem.data_dir_from_flags() == '/home/ada/env'
  monkeypatch.delenv('DISTMNIST_DATA_DIR')
  assert problem.data_dir_from_flags() == '/home/ada/.cache/distmnist'


def test_preparing_asks_the_data_set_for_its_files(
  set_flags, monkeypatch, capsys
):
  from distmnist.datasets import synthetic

  asked = []
  monkeypatch.setattr(synthetic, 'prepare', asked.append)
  set_flags(*SMALL, '--data_dir=/data')
  problem.prepare()
  assert asked == ['/data']
  assert capsys.readouterr().out == 'synthetic is in /data\n'


@pytest.mark.slow
def test_training_images_are_read_once_for_both_splits(set_flags, monkeypatch):
  from distmnist.datasets import synthetic

  loaded, load = [], synthetic.load
  monkeypatch.setattr(
    synthetic, 'load', lambda *args: loaded.append(args) or load(*args)
  )
  problem._read_training_images.cache_clear()
  set_flags(*SMALL, '--validation_images=6', '--data_dir=/another')
  problem.load('train')
  problem.load('validation')
  assert loaded == [('/another', 'train')]


def test_metrics_are_of_each_image(tf_session):
  logits = tf.constant([[1.0, 2, 0], [3, 0, 0], [0, 0, 1]])
  found = problem.metrics(tf.constant([1, 2, 2]), logits)
  assert tf_session.run(found['accuracy']).tolist() == [1, 0, 1]


@pytest.mark.parametrize('smoothing', [0, 0.1, 0.5])
def test_smoothed_labels_are_the_targets_of_the_loss(
  tf_session, set_flags, smoothing
):
  set_flags(f'--label_smoothing={smoothing}')
  labels = np.array([1, 2, 2])
  logits = np.array([[1.0, 2, 0, -1], [3, 0, 0, 1], [0, 0, 1, 2]])
  targets = np.full((3, 4), smoothing / 4)
  targets[range(3), labels] += 1 - smoothing
  log_p = logits - np.log(np.exp(logits).sum(1, keepdims=True))
  loss = problem.loss(tf.constant(labels), tf.constant(logits, tf.float32))
  assert tf_session.run(loss) == pytest.approx(
    -(targets * log_p).sum(1).mean(), rel=1e-6
  )
