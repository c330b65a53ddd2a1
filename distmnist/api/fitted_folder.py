"""The folder in which fit hands its model and arrays to the tasks."""

import json
import os
import secrets
import shutil
import zipfile

import keras
import numpy as np

from distmnist.data import array_folder
from distmnist.problems import fitted


def fill(folder, model, splits, is_resumed):
  """Writes the folder; whoever reads it finds all that a call gave, or nothing.

  A run that is resumed keeps its own model file: Keras numbers layers as they
  are made, and its checkpoints have the names of that model.

  Args:
    folder: str; what is there is replaced.
    model: keras.Model, built.
    splits: {name: (x, y)}, see array_folder.write.
    is_resumed: bool, whether a training of what is there goes on.

  Raises:
    ValueError: that training is of another model or other examples, or an
      array has objects.
  """
  kept = fitted.model_path(folder)
  is_resumed = is_resumed and os.path.exists(kept)
  if is_resumed:
    _check_same(folder, model, splits)
  new = f'{folder}.{secrets.token_hex(4)}'
  os.makedirs(new)
  try:
    array_folder.write(new, splits)
    if is_resumed:
      shutil.copyfile(kept, fitted.model_path(new))
    else:
      model.save(fitted.model_path(new))
    if os.path.exists(folder):
      os.rename(folder, f'{new}.old')
    os.rename(new, folder)
  finally:
    for left in (new, f'{new}.old'):
      shutil.rmtree(left, ignore_errors=True)


def _check_same(folder, model, splits):
  run = f'{os.path.dirname(folder)} has the training of'
  with zipfile.ZipFile(fitted.model_path(folder)) as file:
    kept = json.loads(file.read('config.json'))
  if _describe(kept) != _describe(keras.saving.serialize_keras_object(model)):
    raise ValueError(f'{run} another model: expected that one, or a new logdir')
  for kept, given in zip(
    array_folder.load(folder, 'train'), splits['train'], strict=True
  ):
    kept, given = map(array_folder.flatten, (kept, given))
    # The names of the parts, then the parts.
    if kept[0] != given[0] or not all(
      np.array_equal(mine, array_folder.make_array(theirs))
      for mine, theirs in zip(kept[1], given[1], strict=True)
    ):
      raise ValueError(
        f'{run} other examples (x or y): expected those, or a new logdir'
      )


def _describe(serialized):
  """Returns what a model computes, and its loss and metrics, as text.

  Names count only by where they occur: the layers of a second model that is
  built as the first have other names.

  Args:
    serialized: dict, what Keras makes of a model.
  """
  compiled = serialized.get('compile_config') or {}
  judged = 'loss', 'loss_weights', 'metrics', 'weighted_metrics'
  config = [
    *(serialized['class_name'], serialized['config']),
    {key: compiled.get(key) for key in judged},
  ]
  config = json.loads(json.dumps(config, default=str))
  names = {}
  _collect_names(config, names)
  return json.dumps(_number_names(config, names))


def _collect_names(config, names):
  if isinstance(config, dict):
    name = config.get('name')
    if isinstance(name, str):
      names.setdefault(name, f'name {len(names)}')
    config = list(config.values())
  if isinstance(config, list):
    for part in config:
      _collect_names(part, names)


def _number_names(config, names):
  if isinstance(config, dict):
    return {
      key: _number_names(part, names)
      for key, part in config.items()
      if key != 'shared_object_id'  # Its place in memory.
    }
  if isinstance(config, list):
    return [_number_names(part, names) for part in config]
  return names.get(config, config) if isinstance(config, str) else config
