"""image_model: a SavedModel that takes images, and no other."""

import re

import numpy as np
import pytest

from distmnist.common import cli
from distmnist.serving import image_model
from tests.support import saved_models


def test_images_get_classes_and_probabilities(tmp_path):
  folder = tmp_path / 'model'
  saved_models.write_brightest(folder)
  model = image_model.ImageModel(str(folder))
  assert (model.image_shape, model.num_classes) == ((2, 3, 1), 6)
  classes, probabilities = model.predict(saved_models.make_images([4, 0, 5]))
  assert (classes.dtype, classes.tolist()) == (np.int64, [4, 0, 5])
  assert (probabilities.dtype, probabilities.shape) == (np.float32, (3, 6))
  # From logits 0.9 and five times 0.
  expected = np.exp(0.9) / (np.exp(0.9) + 5)
  np.testing.assert_allclose(probabilities.max(axis=1), expected, rtol=1e-6)
  np.testing.assert_allclose(probabilities.sum(axis=1), 1, rtol=1e-6)


def test_a_model_of_other_things_is_refused(tmp_path):
  saved_models.write_other(tmp_path / 'a')
  with pytest.raises(cli.RunError) as caught:
    image_model.ImageModel(str(tmp_path / 'a'))
  assert re.fullmatch(
    f'--export_dir={re.escape(str(tmp_path / "a"))} '
    r'takes x uint8 \[n, 4\] and gives y uint8 \[n, 4\], expected images uint8 '
    r'\[n, height, width, channels\] -> classes, probabilities: give its '
    'examples by --inputs, or the model of images',
    str(caught.value),
  )
