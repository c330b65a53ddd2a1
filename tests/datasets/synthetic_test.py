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
    assert set(labels) == set(range(synthetic.NUM_CLASSES))


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


def test_sixty_thousand_images_take_seconds():
  start = time.process_time()
  synthetic.draw(60000, 0)
  assert time.process_time() - start < 10  # About 1 where nothing else runs.


def test_pictures_of_a_digit_look_alike_but_are_not_linearly_separable():
  # Least squares on one-hot labels: a linear model, in closed form. It does
  # far better than chance, and leaves much for a net to learn.
  (images, labels), (test_images, test_labels) = (
    synthetic.draw(6000, [0, split]) for split in (0, 1)
  )

  def flatten(pictures):
    flat = pictures.reshape(len(pictures), -1) / np.float32(255)
    return np.pad(flat, ((0, 0), (0, 1)), constant_values=1)

  x = flatten(images)
  ridge = 10 * np.eye(x.shape[1], dtype=np.float32)
  weights = np.linalg.solve(x.T @ x + ridge, x.T @ np.eye(10)[labels])
  guesses = (flatten(test_images) @ weights).argmax(1)
  assert 0.7 < np.mean(guesses == test_labels) < 0.92
