"""workload: data set and model by flags."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from distmnist.common import cli, registry
from distmnist.common.names import DATASETS
from distmnist.training import workload

SMALL = (
  '--dataset=synthetic',
  '--synthetic_train_images=20',
  '--synthetic_test_images=5',
)


def test_the_first_images_are_kept_for_validation(set_flags):
  set_flags(*SMALL, '--validation_images=0')
  whole, none = workload.load_training_splits()
  assert none.images.shape == (0, 28, 28, 1)
  assert none.labels.shape == (0,)
  set_flags('--validation_images=6')
  train, validation = workload.load_training_splits()
  assert train.images.shape == (14, 28, 28, 1)
  assert validation.images.shape == (6, 28, 28, 1)
  for name in ('images', 'labels'):
    parts = [getattr(validation, name), getattr(train, name)]
    assert (np.concatenate(parts) == getattr(whole, name)).all()


@pytest.mark.parametrize('num_images', [20, 21])
def test_validation_leaves_something_to_train_on(set_flags, num_images):
  set_flags(*SMALL, f'--validation_images={num_images}')
  with pytest.raises(
    cli.UsageError,
    match=f'^--validation_images={num_images} leaves nothing to train on: the '
    'data set has 20 training images$',
  ):
    workload.load_training_splits()


def test_the_test_split_is_another_one(set_flags):
  set_flags(*SMALL, '--validation_images=0')
  images, labels = workload.load_test_split()
  train, _ = workload.load_training_splits()
  assert (images.dtype, labels.dtype) == (np.uint8, np.int32)
  assert images.shape == (5, 28, 28, 1)
  assert (images != train.images[:5]).any()


def test_the_model_has_as_many_logits_as_the_data_has_classes(
  tf_session, set_flags
):
  set_flags(*SMALL, '--model=softmax')
  logits = workload.make_model()(tf.zeros([3, 28, 28, 1]), is_training=True)
  assert logits.shape.as_list() == [3, 10]
  assert [v.op.name for v in tf.global_variables()] == [
    'softmax/weights',
    'softmax/biases',
  ]


def test_images_and_classes_may_be_others(tf_session, set_flags):
  set_flags(
    *SMALL,
    '--model=softmax',
    '--validation_images=0',
    '--synthetic_image_size=32',
    '--synthetic_channels=3',
    '--synthetic_classes=12',
  )
  train, _ = workload.load_training_splits()
  assert train.images.shape == (20, 32, 32, 3)
  logits = workload.make_model()(tf.zeros([3, 32, 32, 3]), is_training=True)
  assert logits.shape.as_list() == [3, 12]


@pytest.mark.parametrize('name', registry.names(DATASETS))
def test_each_data_set_says_how_many_classes_it_has(set_flags, name):
  set_flags()
  assert registry.load(DATASETS, name).num_classes() == 10


def test_by_default_it_is_the_mlp_on_mnist(set_flags):
  set_flags()
  assert workload.describe() == ('mlp', 'mnist')


def test_the_data_dir_is_the_flag_then_the_environment_then_a_cache(
  set_flags, monkeypatch
):
  monkeypatch.setenv('HOME', '/home/ada')
  monkeypatch.setenv('DISTMNIST_DATA_DIR', '~/env')
  set_flags('--data_dir=~/flag')
  assert workload.data_dir_from_flags() == '/home/ada/flag'
  set_flags('--data_dir=')
  assert workload.data_dir_from_flags() == '/home/ada/env'
  monkeypatch.delenv('DISTMNIST_DATA_DIR')
  assert workload.data_dir_from_flags() == '/home/ada/.cache/distmnist'


def test_preparing_asks_the_data_set_for_its_files(set_flags, monkeypatch):
  from distmnist.datasets import synthetic

  asked = []
  monkeypatch.setattr(synthetic, 'prepare', asked.append)
  set_flags(*SMALL, '--data_dir=/data')
  workload.prepare_data()
  assert asked == ['/data']


@pytest.mark.parametrize('word', ['--model=recnn', '--dataset=mnits'])
def test_an_unknown_name_is_answered_with_those_there_are(set_flags, word):
  with pytest.raises(Exception, match='value should be one of <.*mnist|mlp'):
    set_flags(word)
