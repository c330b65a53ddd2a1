"""What distmnist.fit was called with, in a folder that the tasks read.

  model.keras    the model, with its compile arguments
  modules.json   the modules that register what it consists of with Keras
  rate.json      the schedule of the learning rate, if it is one of Keras's
  groups.json    which variables are moved otherwise, if any are

and the examples, see data/array_folder.py. This module is a problem as defined
in training/problems/problem.py.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import secrets
import shutil
import sys
import warnings
import zipfile
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from absl import flags

from distmnist.common import cli, command_line, files
from distmnist.data import array_folder

if TYPE_CHECKING:
  import keras
  import tensorflow.compat.v1 as tf

  from distmnist.nn import groups as groups_lib

# Whatever the caller's backend is, the tasks train by TensorFlow's. The caller
# himself, who fills the folder, has imported Keras before.
if 'keras' not in sys.modules:
  os.environ['KERAS_BACKEND'] = 'tensorflow'

_FITTED_DIR = flags.DEFINE_string(
  'fitted_dir', None, 'The folder that distmnist.fit has written.'
)


def load(split: str) -> tuple | None:
  """Returns (x, y) of a split that `fit` was given, else None."""
  return array_folder.load(_find_folder(), split)


def _find_folder() -> str:
  """Returns --fitted_dir; raises cli.UsageError without it."""
  if not _FITTED_DIR.value:
    raise cli.UsageError(
      '--problem=fitted needs --fitted_dir, a folder that distmnist.fit has '
      'written'
    )
  return _FITTED_DIR.value


def make_model() -> keras.Model:
  """Returns the model that `fit` was given.

  Raises:
    cli.UsageError: the folder belongs to another user, and only the flags of a
      run name it: a model and the modules that it needs are programs.
  """
  folder = _find_folder()
  given = command_line.expand(sys.argv[1:])
  if command_line.find_value(given, 'fitted_dir') is None and (
    other := find_other_owner(folder)
  ):
    path, uid = other
    raise cli.UsageError(
      f'--fitted_dir={folder} has a Keras model, a program, and {path} '
      f'belongs to another user (uid {uid}): give --fitted_dir={folder} '
      'yourself if it may run as you'
    )
  return _load_model(folder)


def learning_rate(step: tf.Tensor, epoch: tf.Tensor) -> tf.Tensor | None:
  """Returns the compiled schedule's rate at a step, None without a schedule."""
  del epoch
  try:
    with open(_rate_path(_find_folder()), encoding='utf-8') as file:
      serialized = json.load(file)
  except FileNotFoundError:
    return None
  import keras  # noqa: PLC0415  Only for a Keras model.

  return keras.optimizers.schedules.deserialize(serialized)(step)


def find_groups(names: list[str]) -> tuple[groups_lib.Group, ...]:
  """Returns the groups of variables that `fit` was given.

  Args:
    names: what the graphs call the model's trainable variables.
  """
  from distmnist.nn import groups as groups_lib  # noqa: PLC0415  As below.

  try:
    with open(_groups_path(_find_folder()), encoding='utf-8') as file:
      told = json.load(file)
  except FileNotFoundError:
    return ()
  found = []
  for settings, places in told:
    # As a variable, or as a sparse table.
    patterns = [f'{re.escape(names[place])}(/rows)?' for place in places]
    found.append(groups_lib.Group('|'.join(patterns), **settings))
  return tuple(found)


def find_other_owner(folder: str) -> tuple[str, int] | None:
  """Returns (path, uid) of what is another user's, see files; None if none."""
  return files.find_other_owner(
    *(folder, model_path(folder), _modules_path(folder)),
    *(_rate_path(folder), _groups_path(folder)),
  )


def _load_model(folder: str) -> keras.Model:
  import keras  # noqa: PLC0415  Only for a Keras model.

  # Keras itself imports none.
  with open(_modules_path(folder), encoding='utf-8') as file:
    for name in json.load(file):
      importlib.import_module(name)
  with warnings.catch_warnings():
    # Its optimizer has no slots yet, and is not used.
    warnings.filterwarnings('ignore', '.*variable loading for optimizer')
    # Keras's own signature says object.
    return keras.models.load_model(model_path(folder))  # type: ignore


def model_path(folder: str) -> str:
  return os.path.join(folder, 'model.keras')


def _modules_path(folder: str) -> str:
  return os.path.join(folder, 'modules.json')


def _rate_path(folder: str) -> str:
  return os.path.join(folder, 'rate.json')


def _groups_path(folder: str) -> str:
  return os.path.join(folder, 'groups.json')


def fill(
  folder: str,
  model: keras.Model,
  splits: Mapping[str, tuple],
  is_resumed: bool,
  rate: Mapping[str, Any] | None = None,
  groups: Mapping[groups_lib.Group, Sequence[int]] | None = None,
) -> None:
  """Writes the folder; whoever reads it finds all that a call gave, or nothing.

  A run that is resumed keeps its own model file: Keras numbers layers as they
  are made, and its checkpoints have the names of that model.

  Args:
    folder: what is there is replaced.
    model: built.
    splits: {name: (x, y)}, see array_folder.write.
    is_resumed: whether a training of what is there goes on.
    rate: the schedule of the learning rate as Keras serializes it, or None.
    groups: {groups.Group: places of its variables among the trainable ones of
      the model}, or None if all are moved alike. Their names would not do:
      those that Keras gives are other ones in each process.

  Raises:
    ValueError: that training is of another model or other examples, an array
      has objects, or the tasks could not load the model.
  """
  kept = model_path(folder)
  is_resumed = is_resumed and os.path.exists(kept)
  if is_resumed:
    _check_same(folder, model, splits)
  new = f'{folder}.{secrets.token_hex(4)}'
  os.makedirs(new)
  try:
    array_folder.write(new, splits)
    if is_resumed:
      shutil.copyfile(kept, model_path(new))
    else:
      model.save(model_path(new))
    with open(_modules_path(new), 'w', encoding='utf-8') as file:
      json.dump(_find_modules(model_path(new)), file)
    if rate:
      with open(_rate_path(new), 'w', encoding='utf-8') as file:
        json.dump(rate, file)
    if not is_resumed:
      _load_as_tasks(new)
    if groups:
      with open(_groups_path(new), 'w', encoding='utf-8') as file:
        json.dump([*map(_describe_group, groups.items())], file)
    if os.path.exists(folder):
      os.rename(folder, f'{new}.old')
    os.rename(new, folder)
  finally:
    for left in (new, f'{new}.old'):
      shutil.rmtree(left, ignore_errors=True)


def _describe_group(
  item: tuple[groups_lib.Group, Sequence[int]],
) -> tuple[dict[str, Any], Sequence[int]]:
  group, places = item
  settings = group._asdict()
  del settings['pattern']  # Of the caller's names.
  return settings, places


def _load_as_tasks(folder: str) -> keras.Model:
  """Returns the model as the tasks have it: the caller's code stays behind."""
  try:
    return _load_model(folder)
  except Exception as error:  # Keras and a layer may raise anything.
    reason = str(error).rpartition('Exception encountered: ')[2]
    reason = reason.rpartition('Example error message for object ')[2]
    reason = ' '.join(reason.split()).partition('. ')[0]
    raise _refuse(reason) from error


def _refuse(reason: str) -> ValueError:
  return ValueError(
    f'the tasks cannot load this model: {reason[:200]}: expected layers, '
    "losses and functions of Keras's own, or registered in a package that "
    'the tasks can import; with any others write a file, see '
    'docs/your_own_model.md'
  )


def _find_modules(path: str) -> list[str]:
  """Returns the modules of what a model file has of others.

  Raises:
    ValueError: one of them is the program that runs.
  """
  import keras  # noqa: PLC0415  Only for a Keras model.

  found = {}
  text = _read_config(path)
  for name, registered in keras.saving.get_custom_objects().items():
    if json.dumps(name) in text:
      found[registered.__module__] = registered.__name__
  if '__main__' in found:
    raise _refuse(f'{found["__main__"]} is defined in the program itself')
  return sorted(found)


def _read_config(path: str) -> str:
  with zipfile.ZipFile(path) as file:
    return file.read('config.json').decode()


def _check_same(
  folder: str, model: keras.Model, splits: Mapping[str, tuple]
) -> None:
  run = f'{os.path.dirname(folder)} has the training of'
  kept = json.loads(_read_config(model_path(folder)))
  import keras  # noqa: PLC0415  Only for a Keras model.

  if _describe(kept) != _describe(keras.saving.serialize_keras_object(model)):
    raise ValueError(f'{run} another model: expected that one, or a new logdir')
  examples, given = array_folder.load(folder, 'train') or (), splits['train']
  # One may have weights, and the other none.
  if len(examples) != len(given) or not all(map(_are_equal, examples, given)):
    raise ValueError(
      f'{run} other examples (x, y or weights): expected those, or a new logdir'
    )


def _are_equal(kept: Any, given: Any) -> bool:
  """Whether two nests have the same names and arrays."""
  names, arrays = array_folder.flatten(kept)
  given_names, given_arrays = array_folder.flatten(given)
  return names == given_names and all(
    np.array_equal(mine, array_folder.make_array(theirs))
    for mine, theirs in zip(arrays, given_arrays, strict=True)
  )


def _describe(serialized: Any) -> str:
  """Returns what a model computes, and its loss and metrics, as text.

  Names that Keras gives count only by where they occur: the layers of a second
  model that is built as the first have other ones.

  Args:
    serialized: what Keras makes of a model.
  """
  compiled = serialized.get('compile_config') or {}
  judged = 'loss', 'loss_weights', 'metrics', 'weighted_metrics'
  config = [
    {key: serialized[key] for key in ('class_name', 'config')},
    {key: compiled.get(key) for key in judged},
  ]
  config = json.loads(json.dumps(config, default=str))
  names: dict[str, str] = {}
  _collect_names(config, names)
  return json.dumps(_number_names(config, names))


def _is_keras_name(name: str, class_name: str) -> bool:
  """Whether Keras may have named an object of a class: dense_1, forward_gru."""
  base = re.sub(r'(.)([A-Z][a-z]+)', r'\1_\2', class_name)
  base = re.sub(r'([a-z])([A-Z])', r'\1_\2', base).lower()
  return bool(re.fullmatch(rf'(\w+_)?{re.escape(base)}(_\d+)?', name))


def _collect_names(config: Any, names: dict[str, str]) -> None:
  if isinstance(config, dict):
    own = config.get('config')
    name = own.get('name') if isinstance(own, dict) else None
    if isinstance(name, str) and _is_keras_name(name, config['class_name']):
      names.setdefault(name, f'name {len(names)}')
    config = list(config.values())
  if isinstance(config, list):
    for part in config:
      _collect_names(part, names)


def _number_names(config: Any, names: Mapping[str, str]) -> Any:
  if isinstance(config, dict):
    return {
      key: _number_names(part, names)
      for key, part in config.items()
      if key != 'shared_object_id'  # Its place in memory.
    }
  if isinstance(config, list):
    return [_number_names(part, names) for part in config]
  return names.get(config, config) if isinstance(config, str) else config
