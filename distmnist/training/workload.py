"""What is trained: the data set and the model, by flags."""

import os
from typing import NamedTuple

import numpy as np
from absl import flags

from distmnist.common import cli, registry
from distmnist.common.names import DATASETS, MODELS

_DATASET = flags.DEFINE_enum(
  'dataset',
  'mnist',
  registry.names(DATASETS),
  'The images. synthetic is drawn from a seed and needs no network.',
)
_DATA_DIR = flags.DEFINE_string(
  'data_dir',
  None,
  'Where the files of the data set are, or are downloaded to. By default '
  '$DISTMNIST_DATA_DIR, else ~/.cache/distmnist.',
)
_MODEL = flags.DEFINE_enum('model', 'mlp', registry.names(MODELS), 'The net.')
_VALIDATION_IMAGES = flags.DEFINE_integer(
  'validation_images',
  5000,
  'The first images of the training set, kept apart for validation.',
  lower_bound=0,
)

registry.load_all(DATASETS)
registry.load_all(MODELS)


class Split(NamedTuple):
  """images: uint8 [n, height, width, channels]; labels: int32 [n]."""

  images: np.ndarray
  labels: np.ndarray


def data_dir_from_flags():
  given = _DATA_DIR.value or os.environ.get('DISTMNIST_DATA_DIR')
  return os.path.expanduser(given or '~/.cache/distmnist')


def prepare_data():
  """Makes sure that the files of the data set are there; may download."""
  _load_dataset_module().prepare(data_dir_from_flags())


def load_training_splits():
  """Returns (train, validation), two Splits of the training images.

  Raises:
    cli.UsageError: validation takes them all.
  """
  images, labels = _load_dataset_module().load(data_dir_from_flags(), 'train')
  cut = _VALIDATION_IMAGES.value
  if cut >= len(images):
    raise cli.UsageError(
      f'--validation_images={cut} leaves nothing to train on: the data set has '
      f'{len(images)} training images'
    )
  return Split(images[cut:], labels[cut:]), Split(images[:cut], labels[:cut])


def load_test_split():
  return Split(*_load_dataset_module().load(data_dir_from_flags(), 'test'))


def make_model():
  """Returns build(images, is_training) -> logits; see nn/layers.py."""
  model = registry.load(MODELS, _MODEL.value)
  return model.make(_load_dataset_module().num_classes())


def image_shape():
  """Returns (height, width, channels) of the images; reads no file."""
  return _load_dataset_module().image_shape()


def describe():
  """Returns (model, dataset), their names."""
  return _MODEL.value, _DATASET.value


def flags_of_meaning():
  """Returns the names of the flags that say what is learnt, and by what net.

  Those of which a training that goes on must have the same. Where the files of
  a data set are is none of them, nor is what a checkpoint's shapes tell.
  """
  modules = flags.FLAGS.flags_by_module_dict()
  of_dataset = modules.get(_load_dataset_module().__name__, [])
  return [
    'model',
    'dataset',
    'validation_images',
    *(f.name for f in of_dataset),
  ]


def _load_dataset_module():
  return registry.load(DATASETS, _DATASET.value)
