"""Writes a delta: what has changed since an earlier export (delta.py).

The two checkpoints are compared, a slice of a table at a time: neither has to
have been saved in any particular way, and no table is in memory as a whole.
Where an export stands for the earlier checkpoint, its own variables are read.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow.compat.v1 as tf
from absl import flags

from distmnist.common import cli, files, owner, partial_names
from distmnist.lifecycle import restoring
from distmnist.logdir import checkpoint_reader, checkpoints, saved_run
from distmnist.readers import arrow_file
from distmnist.serving import delta, saved_model
from distmnist.storage import paths, urls
from distmnist.tables import key_map, new_rows, sparse_table

_SINCE = flags.DEFINE_string(
  'since',
  None,
  'Write only what has changed since a checkpoint of this run: its path, its '
  'global step, or the folder of an earlier export, or of an earlier delta '
  'whose checkpoint is still there. Needs pyarrow.',
)

_WHOLE = 'export the whole model, without --since'
# Types of Arrow; all others are written as whole numbers with their bits.
_ARROW = {'float16', 'float32', 'float64'} | {
  f'{sign}int{bits}' for sign in ('', 'u') for bits in (8, 16, 32, 64)
}


class Base(NamedTuple):
  """The state that a delta begins with.

  Attributes:
    path: of a checkpoint, or of the variables of an export.
    step: the global step.
    run: of which training it is, as far as is known.
    is_export: whether its variables have the names of the model.
  """

  path: str
  step: int
  run: str | None
  is_export: bool


def find_run(path: str) -> str | None:
  """Returns which training a checkpoint is of; None if its folder has none.

  Raises:
    cli.RunError: the file that says so cannot be read; cli.PassingError if that
      may pass.
  """
  folder = saved_run.find_folder(path)
  try:
    return owner.find_run(folder)
  except FileNotFoundError:
    return None
  except OSError as error:
    raise cli.choose_error(error)(
      f'which run {folder} is of cannot be read: {error.strerror}'
    ) from error


def describe(path: str) -> dict[str, Any]:
  """Returns {run, step, checkpoint} of a checkpoint, for what is exported.

  Raises:
    cli.RunError: one of them cannot be read.
  """
  return {
    'run': find_run(path),
    'step': checkpoints.read_step(path),
    'checkpoint': os.path.basename(path),
  }


def find_base(logdir: str) -> Base | None:
  """Returns what --since names; None without the flag.

  Args:
    logdir: of the run that is exported.

  Raises:
    cli.UsageError: pyarrow is missing.
    cli.RunError: nothing is there, or it is damaged.
  """
  given = _SINCE.value
  if given is None:
    return None
  try:
    arrow_file.load_pyarrow('parquet')
  except ImportError as error:
    raise cli.UsageError(
      '--since writes Parquet files, and pyarrow is not installed: pip install '
      "'distmnist[data]'"
    ) from error
  path = urls.expand(given)
  if given.isdigit():
    path = checkpoints.path_of_step(logdir, int(given))
  elif paths.is_folder(path):
    record = _read_dict(os.path.join(path, delta.RECORD_FILE))
    if {'run', 'step'} <= record.keys():
      variables = os.path.join(path, 'variables', 'variables')
      return Base(variables, record['step'], record['run'], True)
    return _find_end(path, logdir)
  if not checkpoint_reader.is_there(path):
    raise _error(
      f'was not found (a path of a checkpoint has no ending: '
      f'run/model.ckpt-100): give another one, or {_WHOLE}'
    )
  with _blaming():
    return Base(path, checkpoints.read_step(path), find_run(path), False)


def _find_end(folder: str, logdir: str) -> Base:
  """Returns the state that a delta leads to, of the run that it is of."""
  about = _read_dict(os.path.join(folder, delta.DELTA_FILE))
  if not {'run', 'to_step', 'checkpoint'} <= about.keys():
    raise _error(
      'is neither a checkpoint nor a folder that export has written: give '
      f'another one, or {_WHOLE}'
    )
  name, step = about['checkpoint'], about['to_step']
  for each in logdir, checkpoints.best_dir(logdir):
    path = os.path.join(each, name)
    if not checkpoint_reader.is_there(path):
      continue
    with _blaming():
      if checkpoints.read_step(path) == step:
        return Base(path, step, about['run'], False)
  raise _error(
    f'leads to {name} of step {step}, which is no longer in {logdir} '
    '(--keep_checkpoints of the training): give an export, which has its '
    f'values, or {_WHOLE}'
  )


def _read_dict(path: str) -> dict[str, Any]:
  """Returns the dict of a JSON file; {} if it is not there, or damaged.

  Raises:
    cli.RunError: it cannot be read; cli.PassingError if that may pass.
  """
  try:
    found = json.loads(paths.read_text(path))
  except (FileNotFoundError, ValueError):
    return {}
  except OSError as error:
    raise cli.choose_error(error)(
      f'--since={_SINCE.value} cannot be read: {path}: {error.strerror}'
    ) from error
  return found if isinstance(found, dict) else {}


def _error(what: str) -> cli.RunError:
  return cli.RunError(f'--since={_SINCE.value} {what}')


@contextlib.contextmanager
def _blaming() -> Iterator[None]:
  """Names --since where what it names is damaged."""
  try:
    yield
  except checkpoint_reader.DamageError as error:
    raise _error(
      f'is not whole: {error.reason}; give another one, or {_WHOLE}'
    ) from error


def check(base: Base, path: str, record: Mapping[str, Any]) -> None:
  """Checks that a delta may lead from one state of a run to another.

  Args:
    base: the earlier one.
    path: of the checkpoint of the later one.
    record: {run, step, checkpoint} of it.

  Raises:
    cli.RunError: they are of two runs, or the first one is later.
  """
  run = record['run']
  is_same = base.run == run
  if not run and not base.is_export:
    is_same = os.path.dirname(base.path) == os.path.dirname(path)
  if not is_same:
    raise _error(
      f'is not of the run of {path}: give a checkpoint or an export of that '
      f'run, or {_WHOLE}'
    )
  if base.step > record['step']:
    raise _error(
      f'is of step {base.step}, and {path} of step {record["step"]}: give an '
      'earlier one, or a later --checkpoint'
    )


def write(
  export_dir: str,
  base: Base,
  path: str,
  record: Mapping[str, Any],
  named: Mapping[str, tf.Variable],
  build_model: Callable[[str], None],
) -> tuple[dict[str, dict[str, Any]], int]:
  """Writes a delta, whole or not at all; the graph is the default one.

  Args:
    export_dir: new or empty.
    base, path, record: as of `check`.
    named: {name in the checkpoint: variable} of the model.
    build_model: writes the SavedModel but for its variables to a folder.

  Returns:
    (what delta.json says of the variables, bytes written).

  Raises:
    cli.RunError: the earlier state is of another model, one of them cannot be
      read, or the delta cannot be written.
  """
  about: dict[str, dict[str, Any]] = {}
  names = {v.op.name: name for name, v in named.items()}
  old_names = {name: name for name in names} if base.is_export else names
  later = restoring.Values(named)
  earlier = restoring.Values({old_names[v.op.name]: v for v in named.values()})
  maps = {m.rows.op.name: m for m in key_map.get_all(tf.get_default_graph())}
  _check_fits(base, {old_names[v.op.name]: v for v in named.values()}, maps)

  def fill(folder: str) -> None:
    with (
      later.reading(path) as read_new,
      earlier.reading(base.path) as read_old,
    ):
      new = _Reader(read_new, names, contextlib.nullcontext)
      old = _Reader(read_old, old_names, _blaming)
      about.update(_write_variables(folder, new, old, named.values(), maps))
    found = {
      'run': record['run'],
      'from_step': base.step,
      'to_step': record['step'],
      'checkpoint': record['checkpoint'],
      'variables': about,
    }
    files.write_json(os.path.join(folder, delta.DELTA_FILE), found)
    build_model(os.path.join(folder, delta.MODEL))

  num_bytes = saved_model.write_folder(export_dir, fill, delta.DELTA_FILE)
  return about, num_bytes


def _check_fits(
  base: Base,
  named: Mapping[str, tf.Variable],
  maps: Mapping[str, key_map.KeyMap],
) -> None:
  """Checks that the earlier state has each variable as the later one has it.

  A table of `maps` may have become larger.

  Raises:
    cli.RunError: it has not.
  """
  may_grow = {*maps, *(m.keys.op.name for m in maps.values())}
  with _blaming(), checkpoint_reader.Reader(base.path) as reader:
    shapes, dtypes = reader.shapes, reader.dtypes
  for name, variable in named.items():
    shape, dtype = variable.shape.as_list(), variable.dtype.base_dtype
    what = None
    if name not in shapes:
      what = f'has no {name}'
    elif dtypes[name] != dtype:
      what = f'has {name} in {dtypes[name].name}, and it is now {dtype.name}'
    elif shapes[name] != shape:
      has_grown = shapes[name][1:] == shape[1:] and shapes[name] < shape
      if not (variable.op.name in may_grow and has_grown):
        what = f'has {name} with shape {shapes[name]}, and it is now {shape}'
    if what:
      raise _error(f'{what}: it is of another model; {_WHOLE}')


class _Reader:
  """Reads variables, or some rows of them, by their names in the model."""

  def __init__(
    self,
    read: Callable[..., Any],
    names: Mapping[str, str],
    blaming: Callable[[], contextlib.AbstractContextManager],
  ) -> None:
    """
    Args:
      read: see restoring.Values.reading.
      names: {name in the model: name for `read`}.
      blaming: the context of each read, which names whose failure it is.
    """
    self._read, self._names, self._blaming = read, names, blaming

  def __call__(self, variable: tf.Variable, *rows: int) -> np.ndarray:
    with self._blaming():
      return self._read(self._names[variable.op.name], *rows)


def _write_variables(
  folder: str,
  new: _Reader,
  old: _Reader,
  variables: Iterable[tf.Variable],
  maps: Mapping[str, key_map.KeyMap],
) -> dict[str, dict[str, Any]]:
  """Writes a file for each variable; returns what delta.json says of them."""
  tables = {v.op.name for v in tf.get_collection(sparse_table.TABLES)}
  keys = {m.keys.op.name for m in maps.values()}
  for each in maps.values():
    for read in new, old:
      each.check(int(read(each.keys, new_rows.COMMON_ROW, 1)[0]))
  found = {}
  for variable in variables:
    name = variable.op.name
    file = os.path.join(delta.VARIABLES, f'{name}.parquet')
    path = os.path.join(folder, file)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    about = found[name] = {
      'dtype': variable.dtype.base_dtype.name,
      'shape': variable.shape.as_list(),
      'file': file,
    }
    if name in keys:
      about |= _write_keys(path, variable, new, old)
    elif name in tables:
      about |= _write_rows(path, variable, maps.get(name), new, old)
    else:
      _write_whole(path, new(variable))
    if name in keys or name in maps:
      about['blocks'] = new_rows.NUM_BUCKETS
  return found


def _write_whole(path: str, array: np.ndarray) -> None:
  array = _find_bits(array)
  if not array.size:
    array = array.reshape(-1)
  elif array.ndim > 1:
    array = array.reshape(len(array), -1)
  with _File(path, array.dtype, array.shape[1:]) as file:
    file.write(values=array.reshape(-1, *array.shape[1:]))


def _write_rows(
  path: str,
  variable: tf.Variable,
  keys: key_map.KeyMap | None,
  new: _Reader,
  old: _Reader,
) -> dict[str, int]:
  """Writes the rows of a table that have changed, or whose keys have."""
  num_rows, *shape = variable.shape.as_list()
  row_bytes = int(np.prod(shape)) * variable.dtype.size + 8
  num_changed = 0
  dtype = _find_bits(np.empty([0], variable.dtype.as_numpy_dtype)).dtype
  bits = f'u{dtype.itemsize}'
  with _File(path, dtype, shape, 'position', 'key') as file:
    for part in partial_names.cut_rows(num_rows, row_bytes):
      first = part[0]
      values = _find_bits(new(variable, *part)).reshape(part[1], -1)
      before = _find_bits(old(variable, *part)).reshape(part[1], -1)
      # By their bits: 0 is not -0, and what is not a number is itself.
      changed = (values.view(bits) != before.view(bits)).any(axis=1)
      if keys:
        keys_now = new(keys.keys, *part)
        changed |= keys_now != old(keys.keys, *part)
      rows = np.flatnonzero(changed)
      key = np.asarray(sparse_table.find_id(first + rows, num_rows))
      if keys:
        key = keys_now[rows]
      file.write(position=first + rows, key=key, values=values[rows])
      num_changed += len(rows)
  return {'rows': num_changed}


def _write_keys(
  path: str, keys: tf.Variable, new: _Reader, old: _Reader
) -> dict[str, int]:
  """Writes which rows have other keys, and which keys are gone.

  A key stays in its bucket: it is gone if no row of that has it any more.
  """
  num_rows = keys.shape.as_list()[0]
  in_bucket = num_rows // new_rows.NUM_BUCKETS
  num_changed = num_gone = 0
  with _File(path, np.dtype(np.int64), [], 'position') as file:
    buckets = partial_names.cut_rows(new_rows.NUM_BUCKETS, 8 * in_bucket)
    for begin, size in buckets:
      first, part = in_bucket * begin, (in_bucket * begin, in_bucket * size)
      now, then = new(keys, *part), old(keys, *part)
      rows = np.flatnonzero(now != then)
      left = then[rows]
      gone = np.setdiff1d(left[left >= new_rows.LOWEST_KEY], now[rows])
      file.write(
        position=np.concatenate([first + rows, np.full(len(gone), -1)]),
        values=np.concatenate([now[rows], gone]),
      )
      num_changed += len(rows)
      num_gone += len(gone)
  return {'rows': num_changed, 'gone': num_gone}


def _find_bits(array: np.ndarray) -> np.ndarray:
  """Returns an array in a type of Parquet: itself, or its bits.

  Raises:
    cli.RunError: it has text, or complex numbers of 16 bytes.
  """
  if array.dtype.name in _ARROW:
    return array
  if array.dtype.hasobject or array.dtype.itemsize not in (1, 2, 4, 8):
    raise _error(
      f'takes numbers of at most 8 bytes, and a variable has '
      f'{array.dtype.name}: {_WHOLE}'
    )
  return array.view(f'u{array.dtype.itemsize}')


class _File:
  """A Parquet file to which rows are added."""

  def __init__(
    self, path: str, dtype: np.dtype, shape: Sequence[int], *columns: str
  ) -> None:
    """
    Args:
      dtype, shape: of what a row has in the column `values`.
      *columns: of int64, which come before it.
    """
    self._pa = arrow_file.load_pyarrow()
    values = self._pa.from_numpy_dtype(dtype)
    if shape:
      values = self._pa.list_(values, int(np.prod(shape)))
    whole = [(name, self._pa.int64()) for name in columns]
    # A dictionary takes numbers for one that are equal and have other bits.
    self._writer = arrow_file.load_pyarrow('parquet').ParquetWriter(
      path,
      self._pa.schema([*whole, ('values', values)]),
      use_dictionary=False,
      write_statistics=list(columns),
      write_page_checksum=True,
    )

  def __enter__(self) -> _File:
    return self

  def __exit__(self, *_: Any) -> None:
    self._writer.close()

  def write(self, **columns: np.ndarray) -> None:
    """Adds rows: int64 [n], and values [n] or [n, length]."""
    arrays = []
    for field in self._writer.schema:
      values = columns[field.name]
      array = self._pa.array(values.reshape(-1))
      if values.ndim > 1:
        lists = self._pa.FixedSizeListArray
        array = lists.from_arrays(array, values.shape[1])
      arrays.append(array)
    table = self._pa.Table.from_arrays(arrays, schema=self._writer.schema)
    self._writer.write_table(table)
