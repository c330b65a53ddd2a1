"""A whole checkpoint and a partial one that has some rows of its table."""

import hashlib

import numpy as np

from distmnist.common import partial_names
from distmnist.logdir import checkpoints, saving
from distmnist.storage import paths

TABLE = np.arange(30, dtype=np.float32).reshape(10, 3)
# Those that are touched, in two ranges.
ROWS = {(0, 6): [1, 5], (6, 10): []}


def make_values(step):
  return {'w': np.full(2, step, np.float32), 'global_step': np.int64(step)}


def write_base(writer, step):
  writer.save_values(make_values(step) | {'a/rows': TABLE}, step)


def write(writer, folder, base_step, step):
  """Writes a partial checkpoint; returns what it is, {name: array}.

  Args:
    writer: saving.CheckpointWriter.
    folder: str, its folder.
    base_step, step: int.
  """
  base = checkpoints.path_of_step(folder, base_step)
  index = paths.read_bytes(f'{base}.index')
  values, whole = make_values(step), TABLE.copy()
  for (begin, end), rows in ROWS.items():
    names = partial_names.name_touched('a/rows', begin, end)
    rows = np.array(rows, np.int64)
    whole[rows] = -step
    values |= dict(zip(names, (rows, whole[rows]), strict=True))
  name = partial_names.name_base(base.rpartition('/')[2])
  digest = hashlib.sha256(index).hexdigest().encode()
  values[name] = np.array(digest, object)
  writer.save_values(values, step)
  return make_values(step) | {'a/rows': whole}


def make_both(folder):
  """Returns (path of a partial checkpoint, {name: array} that it is).

  Its step is 7, and that of its base 2.
  """
  writer = saving.CheckpointWriter(folder, 5)
  write_base(writer, 2)
  return checkpoints.path_of_step(folder, 7), write(writer, folder, 2, 7)
