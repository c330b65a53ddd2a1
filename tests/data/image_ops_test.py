"""image_ops: shifts and scales."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from distmnist.common import cli, refusals
from distmnist.data import image_ops


def test_images_are_shifted_by_whole_pixels_up_to_the_limit(tf_session):
  # A pixel in the middle of 7 x 9, and a border that may leave the picture.
  images = np.zeros([64, 7, 9, 1], np.uint8)
  images[:, 3, 4], images[:, 0] = 255, 9
  moved = image_ops.shift(tf.constant(images), 2)
  assert moved.dtype == tf.uint8 and moved.shape == images.shape
  seen = set()
  for image in np.concatenate([tf_session.run(moved) for _ in range(8)]):
    [[y, x, _]] = np.argwhere(image == 255)
    down, right = int(y) - 3, int(x) - 4
    expected = np.zeros([11, 13, 1], np.uint8)
    expected[2 + down : 9 + down, 2 + right : 11 + right] = images[0]
    np.testing.assert_array_equal(image, expected[2:9, 2:11])
    seen.add((down, right))
  assert seen == {(y, x) for y in range(-2, 3) for x in range(-2, 3)}


def test_a_shift_out_of_sight_is_refused(set_flags):
  set_flags('--random_shift=7')
  refusals.refuse(image_ops.REFUSALS, height=28, width=8)
  with pytest.raises(cli.UsageError, match='--random_shift=7 .* 7 x 28'):
    refusals.refuse(image_ops.REFUSALS, height=7, width=28)


def test_pixels_are_scaled_to_0_and_1(tf_session):
  found = tf_session.run(image_ops.scale(tf.constant([0, 51, 255], tf.uint8)))
  np.testing.assert_allclose(found, [0, 0.2, 1], rtol=1e-6)
