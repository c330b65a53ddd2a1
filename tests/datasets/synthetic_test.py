import os
import time

import numpy as np
import pytest
from absl import flags
from absl.testing import flagsaver

from distmnist.datasets import synthetic


@pytest.fixture(autouse=True)
def parsed_flags():
  if not flags.FLAGS.is_parsed():
    flags.FLAGS(['test'])


def load(split, **values):
  defaults = {'synthetic_train_images': 300, 'synthetic_test_images': 200}
  with flagsaver.flagsaver(**{**defaults, **values}):
    return synthetic.load('no/such/folder', split)


def test_has_the_shapes_and_types_of_the_contract():
  for split, n in (('train', 300), ('test', 200)):
    images, labels = load(split)
    assert images.shape == (n, 28, 28, 1) and images.dtype == np.uint8
    assert labels.shape == (n,) and labels.dtype == np.int32
    assert set(labels) == set(range(10))


def test_prepare_makes_nothing(tmp_path):
  synthetic.prepare(str(tmp_path / 'data'))
  assert not os.listdir(tmp_path)


def test_the_same_seed_draws_the_same_images():
  for first, second in zip(
    synthetic.draw(600, 5), synthetic.draw(600, 5), strict=True
  ):
    np.testing.assert_array_equal(first, second)


def test_another_seed_or_split_draws_other_images():
  train, _ = load('train', synthetic_test_images=300)
  test, _ = load('test', synthetic_test_images=300)
  other, _ = load('train', synthetic_seed=1)
  digests = {image.tobytes() for image in np.concatenate([train, test, other])}
  assert len(digests) == 900


@pytest.mark.parametrize('num_images', [1, 511, 512, 513])
def test_every_number_of_images_is_filled_with_ink(num_images):
  images, labels = synthetic.draw(num_images, 0)
  assert len(images) == len(labels) == num_images
  assert (images.reshape(num_images, -1).max(1) > 100).all()


def test_a_number_of_images_below_one_is_refused():
  for name in ('synthetic_train_images', 'synthetic_test_images'):
    with pytest.raises(
      flags.IllegalFlagValueError, match='not a positive integer'
    ):
      flags.FLAGS[name].parse('0')


def test_size_channels_and_classes_by_flag():
  images, labels = load(
    'train',
    synthetic_image_size=64,
    synthetic_channels=3,
    synthetic_classes=1000,
  )
  assert images.shape == (300, 64, 64, 3) and images.dtype == np.uint8
  assert labels.dtype == np.int32
  assert labels.min() < 100 and 900 <= labels.max() < 1000
  with flagsaver.flagsaver(synthetic_classes=1000):
    assert synthetic.num_classes() == 1000
  assert synthetic.num_classes() == 10


@pytest.mark.parametrize(
  ('name', 'values'),
  [
    ('synthetic_image_size', ['7', '1025']),
    ('synthetic_channels', ['0', '17']),
    ('synthetic_classes', ['1', '10001']),
  ],
)
def test_flags_out_of_their_bounds_are_refused(name, values):
  for value in values:
    with pytest.raises(flags.IllegalFlagValueError, match='is not'):
      flags.FLAGS[name].parse(value)


def test_the_size_is_that_of_a_pixel_and_nothing_else():
  images, labels = synthetic.draw(600, 3)
  large, same = synthetic.draw(600, 3, size=56)
  assert same.tolist() == labels.tolist()
  np.testing.assert_array_equal(large, images.repeat(2, 1).repeat(2, 2))
  small, _ = synthetic.draw(600, 3, size=14)
  np.testing.assert_array_equal(small, images[:, ::2, ::2])


def test_channels_are_one_picture_in_a_tint_of_the_image():
  images, _ = synthetic.draw(20, 3, channels=3)
  shares = [
    image[image.max(-1) > 100].astype(float) / image.max() for image in images
  ]
  for share in shares:
    ratio = share / share[:, :1]
    np.testing.assert_allclose(ratio, ratio[:1].repeat(len(ratio), 0), atol=0.1)
  tints = np.array([share.mean(0) / share.mean() for share in shares])
  assert np.ptp(tints, axis=0).min() > 0.2


def test_a_label_is_written_in_digits():
  weights = fit(*synthetic.draw(6000, 0))
  images, labels = synthetic.draw(1000, 1, size=56, num_classes=100)
  for left, digits in ((0, labels // 10), (28, labels % 10)):
    tiles = images[:, ::2, left : left + 28]
    guesses = (flatten(tiles) @ weights).argmax(1)
    assert np.mean(guesses == digits) > 0.6  # Other hands; 0.1 by chance.


def test_sixty_thousand_images_take_seconds():
  start = time.process_time()
  synthetic.draw(60000, 0)
  assert time.process_time() - start < 10  # About 1 where nothing else runs.


def flatten(pictures):
  flat = pictures.reshape(len(pictures), -1) / np.float32(255)
  return np.pad(flat, ((0, 0), (0, 1)), constant_values=1)


def fit(images, labels):
  """Least squares on one-hot labels: a linear model, in closed form."""
  x = flatten(images)
  ridge = 10 * np.eye(x.shape[1], dtype=np.float32)
  return np.linalg.solve(x.T @ x + ridge, x.T @ np.eye(10)[labels])


def test_pictures_of_a_digit_look_alike_but_are_not_linearly_separable():
  # A linear model does far better than chance, and leaves much for a net.
  train, (test_images, test_labels) = (
    synthetic.draw(6000, [0, split]) for split in (0, 1)
  )
  guesses = (flatten(test_images) @ fit(*train)).argmax(1)
  assert 0.7 < np.mean(guesses == test_labels) < 0.92
