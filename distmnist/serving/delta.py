"""Deltas: what has changed in a served model since an earlier export.

A folder that distmnist.export has written with --since (delta_writer.py):

  delta.json              what it is of, and what is in its files:
    run                   of which training, a str
    from_step, to_step    the global steps before and after it
    checkpoint            the name of the checkpoint after it
    variables             {name: dtype, shape after it, file}; of the rows of
                          tables also `rows`, how many have changed
  variables/NAME.parquet  a file for each variable of the SavedModel
  model/                  the later SavedModel but for its variables

A file has a row for each row of a variable, and all of them if the variable has
no column `position`. The columns are

  position  int64, which row of the variable it is
  key       int64, the key of that row, or its number if rows are numbered
  values    the row, a list; a number in a variable of one dimension, or none

Numbers without a type of their own in Parquet, such as bfloat16, are whole
numbers with their bits. A table whose rows are made when their keys are first
seen has two variables: in NAME/keys, which has the key of each row, a position
of -1 means that the key is gone. Numbers below -2^63 + 16 are not keys, and the
rows that have them are those of keys without a row (tables/new_rows.py). If the
table has become larger, `blocks` says in how many blocks its rows lie, each of
which has become longer: what is new in it is like its second row.

This module needs NumPy and pyarrow alone (pip install 'distmnist[data]').
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from typing import Any

import numpy as np

DELTA_FILE, MODEL, VARIABLES = 'delta.json', 'model', 'variables'
# In a SavedModel: its run, its step and its checkpoint.
RECORD_FILE = os.path.join('assets.extra', 'distmnist.json')
_WRONG = 'apply it to the model that it begins with'


def apply(arrays: dict[str, np.ndarray], folder: str) -> None:
  """Makes the variables of a served model those of a later export.

  All files are read before anything changes. Tables then change in place,
  unless they have become larger; other arrays are replaced.

  Args:
    arrays: {name: array}, the variables of the earlier export.
    folder: of the delta.

  Raises:
    OSError: the delta is not there.
    ValueError: it is damaged, or is not of this model; or an array of a table
      is read only.
  """
  variables = read(folder)['variables']
  changes = {}
  for name, about in variables.items():
    if name not in arrays or str(arrays[name].dtype) != about['dtype']:
      raise ValueError(f'{folder} has {name} ({about["dtype"]}): {_WRONG}')
    found = _read_columns(os.path.join(folder, about['file']))
    values = found['values'].view(arrays[name].dtype)
    if 'position' in found:
      is_row = found['position'] >= 0
      rows = _grow(arrays[name], name, about)
      if not rows.flags.writeable:
        raise ValueError(f'{name} is read only: expected an array to change')
      changes[name] = rows, found['position'][is_row], values[is_row]
    else:
      changes[name] = values.reshape(about['shape']), None, None
  for name, (array, positions, values) in changes.items():
    if positions is not None:
      array[positions] = values
    arrays[name] = array


def apply_to_model(export_dir: str, folder: str, new_dir: str) -> None:
  """Writes the later SavedModel, given the earlier one and the delta.

  Args:
    export_dir: of the earlier SavedModel; stays as it is.
    folder: of the delta.
    new_dir: of the later SavedModel, not there yet; written whole or not at
      all.

  Raises:
    OSError: one is not there, or cannot be written.
    ValueError: the delta is damaged, or does not begin with this SavedModel.
  """
  import tensorflow as tf  # noqa: PLC0415  A program without it has arrays.

  about = read(folder)
  with open(os.path.join(export_dir, RECORD_FILE), encoding='utf-8') as file:
    record = json.load(file)
  if (record['run'], record['step']) != (about['run'], about['from_step']):
    raise ValueError(
      f'{folder} goes from step {about["from_step"]} to {about["to_step"]} of '
      f'a run, but {export_dir} is of step {record["step"]}, or of another run'
    )
  variables = os.path.join('variables', 'variables')
  reader = tf.train.load_checkpoint(os.path.join(export_dir, variables))
  arrays = {n: reader.get_tensor(n) for n in reader.get_variable_to_shape_map()}
  apply(arrays, folder)
  parent, name = os.path.split(os.path.abspath(new_dir))
  with tempfile.TemporaryDirectory(prefix=f'.{name}.', dir=parent) as draft:
    new = os.path.join(draft, name)
    shutil.copytree(os.path.join(folder, MODEL), new)
    os.makedirs(os.path.join(new, 'variables'), exist_ok=True)
    _save(arrays, os.path.join(new, variables))
    os.rename(new, new_dir)


def _save(arrays: Mapping[str, np.ndarray], path: str) -> None:
  """Writes variables as TensorFlow's checkpoints have them."""
  import tensorflow.compat.v1 as tf  # noqa: PLC0415

  config = tf.ConfigProto(device_count={'GPU': 0})  # They are of others.
  with (
    tf.Graph().as_default(),
    tf.device('/cpu:0'),
    tf.Session(config=config) as session,
  ):
    given = [tf.placeholder(a.dtype, a.shape) for a in arrays.values()]
    save = tf.raw_ops.SaveV2(
      prefix=path,
      tensor_names=list(arrays),
      shape_and_slices=[''] * len(arrays),
      tensors=given,
    )
    session.run(save, dict(zip(given, arrays.values(), strict=True)))


def read(folder: str) -> dict[str, Any]:
  """Returns what delta.json says; raises OSError or ValueError."""
  path = os.path.join(folder, DELTA_FILE)
  with open(path, encoding='utf-8') as file:
    return json.load(file)


def _read_columns(path: str) -> dict[str, np.ndarray]:
  """Returns {column: [n] or, of lists, [n, length]}, which is read only.

  Raises:
    OSError: it cannot be read.
    ValueError: it is damaged, in one line.
  """
  from pyarrow import parquet  # noqa: PLC0415  An extra.

  try:
    with parquet.ParquetFile(path, page_checksum_verification=True) as file:
      table = file.read()
  except (OSError, ValueError) as error:
    if getattr(error, 'errno', None):  # The system's: it may be whole.
      raise
    reason = ' '.join(str(error).split())
    raise ValueError(f'{path} is damaged: {reason:.200}') from error
  found = {}
  for name in table.column_names:
    column, size = table[name].combine_chunks(), ()
    if hasattr(column.type, 'list_size'):
      size = (column.type.list_size,)
      column = column.flatten()
    array = column.to_numpy(zero_copy_only=False)
    found[name] = array.reshape([table.num_rows, *size])
  return found


def _grow(array: np.ndarray, name: str, about: Mapping[str, Any]) -> np.ndarray:
  """Returns a table with as many rows as it has after a delta."""
  shape, blocks = about['shape'], about.get('blocks')
  if list(array.shape) == shape:
    return array
  if not blocks or list(array.shape[1:]) != shape[1:] or len(array) > shape[0]:
    raise ValueError(f'{name} is {[*array.shape]}, and {shape} there: {_WRONG}')
  old = array.reshape([blocks, -1, *shape[1:]])
  num_new = shape[0] // blocks - len(array) // blocks
  new = np.repeat(old[:, 1:2], num_new, axis=1)
  return np.concatenate([old, new], axis=1).reshape(shape)
