"""drawn_digits: the same from a seed, and what a net has to learn."""

import time

import numpy as np
import pytest

from distmnist.data import drawn_digits


@pytest.mark.slow
def test_the_same_seed_draws_the_same_images():
  for first, second in zip(
    drawn_digits.draw(600, 5), drawn_digits.draw(600, 5), strict=True
  ):
    np.testing.assert_array_equal(first, second)


@pytest.mark.slow
@pytest.mark.parametrize('num_images', [1, 512, 513])
def test_every_number_of_images_is_filled_with_ink(num_images):
  images, labels = drawn_digits.draw(num_images, 0)
  assert len(images) == len(labels) == num_images
  assert (images.reshape(num_images, -1).max(1) > 100).all()


@pytest.mark.slow
def test_the_size_is_that_of_a_pixel_and_nothing_else():
  images, labels = drawn_digits.draw(600, 3)
  large, same = drawn_digits.draw(600, 3, size=56)
  assert same.tolist() == labels.tolist()
  np.testing.assert_array_equal(large, images.repeat(2, 1).repeat(2, 2))
  small, _ = drawn_digits.draw(600, 3, size=14)
  np.testing.assert_array_equal(small, images[:, ::2, ::2])


@pytest.mark.slow
def test_channels_are_one_picture_in_a_tint_of_the_image():
  images, _ = drawn_digits.draw(20, 3, channels=3)
  shares = [
    image[image.max(-1) > 100].astype(float) / image.max() for image in images
  ]
  for share in shares:
    ratio = share / share[:, :1]
    np.testing.assert_allclose(ratio, ratio[:1].repeat(len(ratio), 0), atol=0.1)
  tints = np.array([share.mean(0) / share.mean() for share in shares])
  assert np.ptp(tints, axis=0).min() > 0.2


@pytest.mark.slow
def test_a_label_is_written_in_digits():
  weights = fit(*drawn_digits.draw(6000, 0))
  images, labels = drawn_digits.draw(1000, 1, size=56, num_classes=100)
  for left, digits in ((0, labels // 10), (28, labels % 10)):
    tiles = images[:, ::2, left : left + 28]
    guesses = (flatten(tiles) @ weights).argmax(1)
    assert np.mean(guesses == digits) > 0.6  # Other hands; 0.1 by chance.


@pytest.mark.slow
def test_sixty_thousand_images_take_seconds():
  start = time.process_time()
  drawn_digits.draw(60000, 0)
  assert time.process_time() - start < 10  # About 1 where nothing else runs.


def flatten(pictures):
  flat = pictures.reshape(len(pictures), -1) / np.float32(255)
  return np.pad(flat, ((0, 0), (0, 1)), constant_values=1)


def fit(images, labels):
  """Least squares on one-hot labels: a linear model, in closed form."""
  x = flatten(images)
  ridge = 10 * np.eye(x.shape[1], dtype=np.float32)
  return np.linalg.solve(x.T @ x + ridge, x.T @ np.eye(10)[labels])


@pytest.mark.slow
def test_pictures_of_a_digit_look_alike_but_are_not_linearly_separable():
  # A linear model does far better than chance, and leaves much for a net.
  train, (test_images, test_labels) = (
    drawn_digits.draw(6000, [0, split]) for split in (0, 1)
  )
  guesses = (flatten(test_images) @ fit(*train)).argmax(1)
  assert 0.7 < np.mean(guesses == test_labels) < 0.92
