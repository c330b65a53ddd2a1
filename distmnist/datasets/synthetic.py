"""Digit-like images that NumPy draws from a seed, with no network or file.

data/drawn_digits.py shows how a digit is drawn. Training and test images have
different seeds, and so different handwriting.

They give a net something to learn. Test accuracy, measured on a 2-core x86 VM
(Adam 1e-3, batches of 128, 60,000 training and 10,000 test images):

  softmax, linear            88.0 % after 4 epochs, 89.0 % after 8
  one hidden layer of 128    95.8 % after 3 epochs
  two 5x5 convolutions       99.0 % after 1 epoch

Drawing these 70,000 images takes 0.7 s on one core there.

For larger models there are images of other sizes, with several channels (each
image has a tint) and of more classes: with 1000 classes an image shows the
three digits of its label side by side. They are drawn at 28 rows and scaled.
All images stay in memory, one byte per pixel and channel.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from absl import flags

from distmnist.data import drawn_digits

if TYPE_CHECKING:
  import numpy as np

_TRAIN_IMAGES = flags.DEFINE_integer(
  'synthetic_train_images',
  60000,
  'Images that --dataset=synthetic draws for training.',
  lower_bound=1,
)
_TEST_IMAGES = flags.DEFINE_integer(
  'synthetic_test_images',
  10000,
  'Images that --dataset=synthetic draws for testing.',
  lower_bound=1,
)
_IMAGE_SIZE = flags.DEFINE_integer(
  'synthetic_image_size',
  28,
  'Height and width, in pixels, of the images of --dataset=synthetic. At 224, '
  'with 3 channels, 1000 images take 151 MB: see --synthetic_train_images.',
  lower_bound=8,
  upper_bound=1024,
)
_CHANNELS = flags.DEFINE_integer(
  'synthetic_channels',
  1,
  'Channels of the images of --dataset=synthetic, 3 for colour.',
  lower_bound=1,
  upper_bound=16,
)
_CLASSES = flags.DEFINE_integer(
  'synthetic_classes',
  10,
  'Number of classes of --dataset=synthetic: the numbers from 0 to this minus '
  '1, drawn as digits.',
  lower_bound=2,
  upper_bound=10000,
)


def num_classes() -> int:
  """Returns --synthetic_classes."""
  return _CLASSES.value


def image_shape() -> tuple[int, int, int]:
  """Returns height, width, channels, as the flags say."""
  return _IMAGE_SIZE.value, _IMAGE_SIZE.value, _CHANNELS.value


def prepare(data_dir: str) -> None:
  """Does nothing: the images are drawn, not read."""
  del data_dir


def load(data_dir: str, split: str) -> tuple[np.ndarray, np.ndarray]:
  """Returns (images, labels) of `split`, as drawn_digits.draw does.

  Args:
    data_dir: unused.
    split: 'train' or 'test'.
  """
  del data_dir
  num_images, seed = {
    'train': (_TRAIN_IMAGES.value, [0, 0]),
    'test': (_TEST_IMAGES.value, [0, 1]),
  }[split]
  return drawn_digits.draw(
    num_images,
    seed,
    _IMAGE_SIZE.value,
    _CHANNELS.value,
    _CLASSES.value,
  )
