"""synthetic: the contract of a data set, and its flags."""

import os

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


@pytest.mark.slow
def test_has_the_shapes_and_types_of_the_contract():
  for split, n in (('train', 300), ('test', 200)):
    images, labels = load(split)
    assert images.shape == (n, 28, 28, 1) and images.dtype == np.uint8
    assert labels.shape == (n,) and labels.dtype == np.int32
    assert set(labels) == set(range(10))


def test_prepare_makes_nothing(tmp_path):
  synthetic.prepare(str(tmp_path / 'data'))
  assert not os.listdir(tmp_path)


@pytest.mark.slow
def test_another_split_draws_other_images():
  train, _ = load('train', synthetic_test_images=300)
  test, _ = load('test', synthetic_test_images=300)
  digests = {image.tobytes() for image in np.concatenate([train, test])}
  assert len(digests) == 600


def test_a_number_of_images_below_one_is_refused():
  for name in ('synthetic_train_images', 'synthetic_test_images'):
    with pytest.raises(
      flags.IllegalFlagValueError, match='not a positive integer'
    ):
      flags.FLAGS[name].parse('0')


@pytest.mark.slow
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
