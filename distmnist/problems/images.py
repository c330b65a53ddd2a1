"""Image classification: --dataset from datasets/ and --model from models/."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import tensorflow.compat.v1 as tf
from absl import flags

from distmnist.common import cli, refusals, registry
from distmnist.common.names import DATASETS, MODELS
from distmnist.data import image_ops
from distmnist.storage import urls

if TYPE_CHECKING:
  import types

  import numpy as np

best = '+accuracy'
unit = 'images'

_DATASET = flags.DEFINE_enum(
  'dataset',
  'mnist',
  registry.names(DATASETS),
  'The images. synthetic is drawn from a seed and needs no network.',
)
_DATA_DIR = flags.DEFINE_string(
  'data_dir',
  None,
  'Where the files of the data set are, or are downloaded to. It may be an '
  'address of a store: s3://, gs:// or hdfs://; then they must already be '
  'there. By default $DISTMNIST_DATA_DIR, else ~/.cache/distmnist.',
)
_MODEL = flags.DEFINE_enum('model', 'mlp', registry.names(MODELS), 'The net.')
_VALIDATION_IMAGES = flags.DEFINE_integer(
  'validation_images',
  5000,
  'How many of the first training images are set aside for validation.',
  lower_bound=0,
)
_LABEL_SMOOTHING = flags.DEFINE_float(
  'label_smoothing',
  0,
  'The part of a label, from 0 to less than 1, that the loss spreads evenly '
  'over all classes (Szegedy et al. 2016).',
  lower_bound=0,
)
flags.register_validator(
  'label_smoothing',
  lambda part: part < 1,
  'expected a number from 0 to less than 1: with 1 the label counts for '
  'nothing',
)

registry.load_all(DATASETS)
registry.load_all(MODELS)


def describe() -> str:
  """Returns the model and the data set, as --model and --dataset name them."""
  return f'{_MODEL.value} on {_DATASET.value}'


def data_dir_from_flags() -> str:
  given = _DATA_DIR.value or os.environ.get('DISTMNIST_DATA_DIR')
  return urls.expand(given or '~/.cache/distmnist')


def prepare() -> None:
  """Makes sure that the data set's files exist; may download them."""
  _load_dataset_module().prepare(data_dir_from_flags())
  print(f'{_DATASET.value} is in {data_dir_from_flags()}')


def load(split: str) -> tuple[np.ndarray, np.ndarray]:
  """Returns (images, labels): uint8 [n, height, width, channels], int32 [n].

  The validation split is the first --validation_images of the training images,
  and `train` is the rest of them.

  Raises:
    cli.UsageError: nothing is left to train on.
  """
  if split == 'test':
    return _load_dataset_module().load(data_dir_from_flags(), 'test')
  images, labels = _load_training_images()
  cut = _VALIDATION_IMAGES.value
  if cut >= len(images):
    raise cli.UsageError(
      f'--validation_images={cut} leaves nothing to train on: the data set has '
      f'{len(images)} training images'
    )
  if split == 'validation':
    return images[:cut], labels[:cut]
  return images[cut:], labels[cut:]


def image_shape() -> tuple[int, int, int]:
  """Returns (height, width, channels) of the images; reads no file."""
  return _load_dataset_module().image_shape()


def spec() -> tf.TensorSpec:
  """Returns that of an image: uint8 0..255; reads no file."""
  return tf.TensorSpec(image_shape(), tf.uint8, 'images')


def serve(outputs: tf.Tensor) -> dict[str, tf.Tensor]:
  """Returns what a SavedModel outputs, computed from the logits.

  classes: int64 [n], the most probable; probabilities: float32 [n, classes].
  """
  return {
    'classes': tf.argmax(outputs, axis=1, name='classes'),
    'probabilities': tf.nn.softmax(outputs, name='probabilities'),
  }


def make_batch(num_examples: int) -> tuple[tf.Tensor, tf.Tensor]:
  """Returns (x, y) of zeros, as `preprocess` returns them; reads no file."""
  images = tf.zeros([num_examples, *image_shape()])
  return images, tf.zeros([num_examples], tf.int32)


def check_flags() -> None:
  """Raises cli.UsageError if flags do not fit the images or the net."""
  height, width, _ = image_shape()
  refusals.refuse(image_ops.REFUSALS, height=height, width=width)
  _make_model()


def preprocess(
  x: tf.Tensor, y: tf.Tensor | None, is_training: bool
) -> tuple[tf.Tensor, tf.Tensor | None]:
  """uint8 0..255 -> float32 0..1, shifted by --random_shift in training."""
  if is_training:
    x = image_ops.shift_by_flags(x)
  return image_ops.scale(x), y


def build(x: tf.Tensor, is_training: bool) -> tf.Tensor:
  """Returns the logits, float32 [n, classes]."""
  return _make_model()(x, is_training)


def loss(y: tf.Tensor, outputs: tf.Tensor) -> tf.Tensor:
  """Returns the cross entropy, the mean over the batch, float32 [].

  With --label_smoothing=e (Szegedy et al. 2016, arXiv 1512.00567, section 7)
  the target of a class is e / classes, plus 1 - e if it is the label.
  """
  smoothing = _LABEL_SMOOTHING.value
  if not smoothing:
    return tf.losses.sparse_softmax_cross_entropy(y, outputs)
  targets = tf.one_hot(y, outputs.shape[-1])
  return tf.losses.softmax_cross_entropy(
    targets, outputs, label_smoothing=smoothing
  )


def metrics(y: tf.Tensor, outputs: tf.Tensor) -> dict[str, tf.Tensor]:
  """accuracy: whether the largest logit is the label's, float32 [n]."""
  predictions = tf.argmax(outputs, axis=1, output_type=tf.int32)
  return {'accuracy': tf.cast(tf.equal(predictions, y), tf.float32)}


def flags_of_meaning() -> list[str]:
  """Returns the names of the flags that say what is learnt, and by what net.

  A resumed training must have the same values. The place of a data set's files
  is not among them, nor is anything that a checkpoint's shapes show.
  """
  names = [flag.name for flag in _dataset_flags()]
  return ['model', 'dataset', 'validation_images', *names]


def _make_model() -> Callable[[tf.Tensor, bool], tf.Tensor]:
  """Returns build(images, is_training) -> logits; see nn/layers.py."""
  model = registry.load(MODELS, _MODEL.value)
  return model.make(_load_dataset_module().num_classes())


def _load_training_images() -> tuple[np.ndarray, np.ndarray]:
  """Returns (images, labels), read once for both splits."""
  settings = tuple((flag.name, str(flag.value)) for flag in _dataset_flags())
  return _read_training_images(_DATASET.value, data_dir_from_flags(), settings)


@functools.lru_cache(maxsize=1)
def _read_training_images(
  dataset: str, data_dir: str, settings: tuple[tuple[str, str], ...]
) -> tuple[np.ndarray, np.ndarray]:
  del settings  # The data set reads them itself.
  return registry.load(DATASETS, dataset).load(data_dir, 'train')


def _dataset_flags() -> Sequence[flags.Flag]:
  """Returns the data set's own flags."""
  modules = flags.FLAGS.flags_by_module_dict()
  return modules.get(_load_dataset_module().__name__, [])


def _load_dataset_module() -> types.ModuleType:
  return registry.load(DATASETS, _DATASET.value)
