"""What distmnist.fit was called with, in a folder that the tasks read.

  model.keras   the model, with its compile arguments

and the examples, see data/array_folder.py. This module is a problem as defined
in training/problems/problem.py.
"""

import os

from absl import flags

from distmnist.data import array_folder

_FITTED_DIR = flags.DEFINE_string(
  'fitted_dir', None, 'The folder that distmnist.fit has written.'
)


def load(split):
  """Returns (x, y); the test split is the validation split, if there is one."""
  folder = _FITTED_DIR.value
  if split != 'test':
    return array_folder.load(folder, split)
  validation = array_folder.load(folder, 'validation')
  return validation or array_folder.load(folder, 'train')


def make_model():
  """Returns the keras.Model that `fit` was given."""
  import keras  # noqa: PLC0415  Only for a Keras model.

  return keras.models.load_model(model_path(_FITTED_DIR.value))


def model_path(folder):
  return os.path.join(folder, 'model.keras')
