"""Operations on images in the graph, batch by batch."""

from __future__ import annotations

import numpy as np
import tensorflow.compat.v1 as tf
from absl import flags

from distmnist.common.refusals import Refusal
from distmnist.data import seeds

_RANDOM_SHIFT = flags.DEFINE_integer(
  'random_shift',
  0,
  'Largest shift in pixels of each training image along each axis, drawn anew '
  'each time that it is read; the pixels moved in are black.',
  lower_bound=0,
)


# Facts: height and width of the images, int.
REFUSALS = (
  Refusal(
    'random_shift',
    lambda f: _RANDOM_SHIFT.value >= min(f.height, f.width),
    lambda f: (
      f' would move images of {f.height} x {f.width} pixels out of sight: 1 or '
      '2 is usual'
    ),
  ),
)


def shift_by_flags(images: tf.Tensor) -> tf.Tensor:
  """Moves each image by up to --random_shift pixels; see `shift`."""
  if not _RANDOM_SHIFT.value:
    return images
  return shift(images, _RANDOM_SHIFT.value)


def shift(images: tf.Tensor, max_pixels: int) -> tf.Tensor:
  """Moves each image by whole pixels, drawn from -max_pixels..max_pixels.

  Args:
    images: uint8 [n, height, width, channels].

  Returns:
    Tensor like `images`, 0 where a pixel comes from outside the image.
  """
  n, height, width, _ = images.shape.as_list()
  drawn = tf.random.stateless_uniform(
    [n, 2], seeds.make_key('shift'), -max_pixels, max_pixels + 1, tf.int32
  )
  by_x, by_y = tf.split(tf.cast(drawn, tf.float32), 2, axis=1)
  one, zero = tf.ones([n, 1]), tf.zeros([n, 1])
  # The pixel at (x, y) comes from (x + by_x, y + by_y).
  moved = tf.raw_ops.ImageProjectiveTransformV3(
    images=images,
    transforms=tf.concat(
      [one, zero, by_x, zero, one, by_y, zero, zero], axis=1
    ),
    output_shape=[height, width],
    fill_value=0.0,
    interpolation='NEAREST',
  )
  moved.set_shape(images.shape)
  return moved


def scale(images: tf.Tensor | np.ndarray) -> tf.Tensor:
  """uint8 0..255 -> float32 0..1."""
  return tf.cast(images, tf.float32) * (1 / 255)
