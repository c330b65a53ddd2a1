"""What distmnist.fit was called with, in a folder that the tasks read.

  model.keras           the model, with what it is compiled with
  SPLIT_x_0.npy, ...    the arrays of x, of y likewise
  nests.json            {'x': names, 'y': names}; null for a single array, and
                        numbers for the names of a tuple's items

`write` is for the caller, the rest is a problem as training/problem.py has it.
"""

import json
import os

import numpy as np
from absl import flags

_FITTED_DIR = flags.DEFINE_string(
  'fitted_dir', None, 'The folder that distmnist.fit has written.'
)


def write(folder, splits):
  """Writes the data of a training.

  Args:
    folder: str, an existing folder.
    splits: {'train': (x, y)}, and 'validation' if there is one; x and y are
      arrays [n, ...], or dicts, tuples or lists of such.
  """
  nests = {}
  for split, pair in splits.items():
    for side, nest in zip('xy', pair, strict=True):
      nests[side], arrays = _flatten(nest)
      for i, array in enumerate(arrays):
        np.save(_path(folder, split, side, i), np.asarray(array))
  with open(_nests_path(folder), 'w', encoding='utf-8') as file:
    json.dump(nests, file)


def _flatten(nest):
  """Returns (names, list of arrays)."""
  if isinstance(nest, dict):
    return list(nest), list(nest.values())
  if isinstance(nest, (tuple, list)):
    return list(range(len(nest))), list(nest)
  return None, [nest]


def load(split):
  """Returns (x, y); the test split is the validation split, if there is one."""
  folder = _FITTED_DIR.value
  has_validation = os.path.exists(_path(folder, 'validation', 'x', 0))
  if split == 'validation' and not has_validation:
    return None
  if split == 'test':
    split = 'validation' if has_validation else 'train'
  with open(_nests_path(folder), encoding='utf-8') as file:
    nests = json.load(file)
  return tuple(_load_nest(folder, split, side, nests[side]) for side in 'xy')


def _load_nest(folder, split, side, names):
  arrays = [
    np.load(_path(folder, split, side, i), mmap_mode='r')
    for i in range(1 if names is None else len(names))
  ]
  if names is None:
    return arrays[0]
  if names and isinstance(names[0], int):
    return tuple(arrays)
  return dict(zip(names, arrays, strict=True))


def make_model():
  """Returns the keras.Model that `fit` was given."""
  import keras  # noqa: PLC0415  Only where a model is one of Keras.

  return keras.models.load_model(model_path(_FITTED_DIR.value))


def model_path(folder):
  return os.path.join(folder, 'model.keras')


def _nests_path(folder):
  return os.path.join(folder, 'nests.json')


def _path(folder, split, side, number):
  return os.path.join(folder, f'{split}_{side}_{number}.npy')
