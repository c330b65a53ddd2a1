"""The values of another model that a new run begins with, by --warm_start.

Only the model's own variables come over, by name and shape: no optimizer slot,
no step. They are fed as initial values, so whatever a rule derives from those
(a backup, an average, a worker's copy) begins with them as well. Once the run
has a checkpoint of its own, nothing reads the other model again.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
import tensorflow.compat.v1 as tf
from absl import flags

from distmnist import runtime
from distmnist.common import cli, partial_names
from distmnist.logdir import checkpoint_reader, checkpoints, earlier_runs
from distmnist.nn import groups as groups_lib
from distmnist.storage import paths, urls
from distmnist.tables import key_map, new_rows, shard_slices
from distmnist.transport import fed_initial_values

_log = logging.getLogger(__name__)

_WARM_START = flags.DEFINE_string(
  'warm_start',
  None,
  'What a new run takes its first values from: a log directory, a checkpoint, '
  'a SavedModel or a .keras file. A variable takes the value of the one with '
  'its name if that has its shape. PATH:PATTERN takes only those whose whole '
  'name matches the regular expression, such as run:hidden/.*. The optimizer '
  'and the global step begin anew.',
)
_ADVICE = 'or give another --warm_start'
# What belongs together in a table whose rows are made.
_TABLE_PARTS = '/keys', '/rows'
# What a checkpoint has that is beside no variable.
_OF_OPTIMIZERS = 'global_step', 'beta1_power', 'beta2_power'


def is_wanted() -> bool:
  """Returns whether --warm_start is given."""
  return bool(_WARM_START.value)


class Source(NamedTuple):
  """A model's variables.

  Attributes:
    path: what was read, for messages.
    shapes: {name: list of int}.
    dtypes: {name: tf.DType}.
    read: callable(name) -> array.
    reader: of a checkpoint, else None.
  """

  path: str
  shapes: dict[str, list[int]]
  dtypes: dict[str, tf.DType]
  read: Callable[[str], np.ndarray]
  reader: checkpoint_reader.Reader | None = None


def check(logdir: str | None, is_moved: bool) -> None:
  """Checks that --warm_start can be read; for a run that begins.

  Args:
    logdir: of the run.
    is_moved: whether what is in it now is going to be moved aside.

  Raises:
    cli.UsageError: there is no model at its path, --resume begins with another,
      or its pattern is none or matches no variable.
    cli.RunError: the model is damaged.
    cli.PassingError: it cannot be read now.
  """
  if not _WARM_START.value:
    return
  path, pattern = _parse()
  if flags.FLAGS.resume not in ('auto', 'never'):
    raise _error(
      f'--resume={flags.FLAGS.resume} is given, too, which begins with all of '
      'a checkpoint: leave one of them out'
    )
  is_inside = logdir and earlier_runs.find_place(path + '/', logdir) is not None
  if is_moved and is_inside:
    raise _error(
      f'it is in --logdir={logdir}, which is moved aside by --resume=never: '
      'expected another --logdir'
    )
  with _open(path) as source:
    if not any(pattern.fullmatch(name) for name in source.shapes):
      raise _error(
        f'no variable of {source.path} matches {pattern.pattern}: it has '
        f'{_list(_choose_values(source.shapes))}'
      )


def give(variables: Iterable[tf.Variable]) -> None:
  """Gives variables of the default graph the values of --warm_start.

  They are read when the variables are initialised.

  Args:
    variables: the model's; of a partitioned one, its shards.
  """
  if not _WARM_START.value:
    return
  specs = {}
  for variable in variables:
    name, shape, _ = shard_slices.find_place(variable)
    specs[name] = shape, variable.dtype.base_dtype
  kinds = {
    each.name: each.kind for each in key_map.get_all(tf.get_default_graph())
  }
  fed_initial_values.give_first(lambda: _load(specs, kinds))


def _load(
  specs: dict[str, tuple[list[int], tf.DType]], kinds: dict[str, str]
) -> tuple[dict[str, np.ndarray], dict[str, StoredRows]]:
  """Returns what takes its values; says which that is.

  All are read from one checkpoint: the other run may go on meanwhile.

  Args:
    specs: {name: (shape, dtype)} of the model's variables.
    kinds: {table: the kind of its keys} of those whose rows are made.

  Returns:
    ({name: array}, {table: StoredRows}).

  Raises:
    cli.UsageError: none does, one that a pattern names has another shape, or a
      table has keys of another kind.
  """
  made = {table + part for table in kinds for part in _TABLE_PARTS}

  def is_same(shape: list[int], other: list[int], name: str) -> bool:
    # Its rows are given by key: it may have room for more of them, or fewer.
    return shape == other or (name in made and shape[1:] == other[1:])

  path, pattern = _parse()
  with _open(path) as source:
    fit = {
      name
      for name, (shape, dtype) in specs.items()
      if name in source.shapes
      and is_same(shape, source.shapes[name], name)
      and source.dtypes[name] == dtype
    }
    chosen = {
      name
      for name in fit
      if all(part in fit for part in _find_parts(name, specs))
      and any(pattern.fullmatch(part) for part in _find_parts(name, specs))
    }
    for name in specs.keys() & source.shapes.keys() - fit:
      if pattern.fullmatch(name) and pattern.pattern != '.*':
        raise _error(
          f'{name} in {source.path} is {source.dtypes[name].name} of shape '
          f'{source.shapes[name]}, and the model has {specs[name][1].name} of '
          f'shape {specs[name][0]}: expected the same, or a pattern without it'
        )
    if not chosen:
      raise _error(
        f'no variable of the model has its name and shape in {source.path}: '
        f'the model has {_list(specs)}, and there is '
        f'{_list(_choose_values(source.shapes))}'
      )
    left = specs.keys() - chosen
    text = f'warm start from {source.path}: {_list(chosen)}'
    _log.info(text + (f'; anew: {_list(left)}' if left else ''))
    rows = {
      table: StoredRows(source.path, source.reader, table, kind)
      for table, kind in kinds.items()
      if source.reader and f'{table}/rows' in chosen
    }
    values = {name: source.read(name) for name in sorted(chosen - made)}
    return values, rows


class StoredRows:
  """A table of a checkpoint whose rows were made; see first_rows.Source."""

  def __init__(
    self, path: str, reader: checkpoint_reader.Reader, table: str, kind: str
  ) -> None:
    """
    Args:
      reader: of it, to look at the keys.
      table: its name.
      kind: of the model's keys, a key of new_rows.MARKS.

    Raises:
      cli.UsageError: its keys are of another kind.
    """
    self._path, self._table = path, table
    mark = reader.read_rows(f'{table}/keys', new_rows.COMMON_ROW, 1)[0]
    if mark != new_rows.MARKS[kind]:
      raise _error(
        f'the keys of the table {table!r} in {path} are no {kind}, as those of '
        'the model are: expected a pattern without it'
      )

  def read(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """See first_rows.Source."""
    name = f'{self._table}/rows'
    with checkpoint_reader.Reader(self._path) as reader:
      row_bytes = reader.dtypes[name].size * reader.shapes[name][1]
      for part in reader.find_slices(name):
        # A SavedModel has all rows in one piece.
        for begin, size in partial_names.cut_rows(part.size, row_bytes):
          rows = part.first + begin, size
          keys = reader.read_rows(f'{self._table}/keys', *rows)
          is_key = keys >= new_rows.LOWEST_KEY
          yield keys[is_key], reader.read_rows(name, *rows)[is_key]

  def read_shared(self) -> np.ndarray:
    """See first_rows.Source."""
    name = f'{self._table}/rows'
    with checkpoint_reader.Reader(self._path) as reader:
      in_bucket = reader.shapes[name][0] // new_rows.NUM_BUCKETS
      firsts = range(new_rows.COMMON_ROW, reader.shapes[name][0], in_bucket)
      return np.concatenate([reader.read_rows(name, at, 1) for at in firsts])


def _find_parts(name: str, names: Collection[str]) -> list[str]:
  """Returns `name`, and what of a table of made rows comes with it or not."""
  stem = next(
    (name.removesuffix(p) for p in _TABLE_PARTS if name.endswith(p)), None
  )
  parts = [] if stem is None else [stem + part for part in _TABLE_PARTS]
  return parts if all(part in names for part in parts) and parts else [name]


def _parse() -> tuple[str, re.Pattern]:
  """Returns (path, pattern) of --warm_start, which is given."""
  given = _WARM_START.value or ''
  path, colon, pattern = given.rpartition(':')
  # An address has a colon of its own.
  is_whole = not colon or pattern.startswith('//')
  if is_whole or paths.exists(given) or checkpoint_reader.is_there(given):
    path, pattern = given, '.*'
  try:
    return urls.expand(path), re.compile(pattern)
  except re.error as error:
    raise _error(f'{pattern} is no regular expression: {error}') from error


@contextlib.contextmanager
def _open(path: str) -> Iterator[Source]:
  """Yields the Source of what a path leads to, here or in a store."""
  try:
    is_folder = paths.is_folder(path)
    if is_folder and paths.exists(os.path.join(path, 'saved_model.pb')):
      path = os.path.join(path, 'variables', 'variables')
    elif is_folder:
      path = checkpoints.find_usable(path, advice=_ADVICE) or path
  except OSError as error:
    kind = cli.choose_error(error, cli.UsageError)
    raise kind(f'--warm_start={path}: {error.strerror}') from error
  if path.endswith('.keras'):
    yield _read_keras(path)
    return
  if not checkpoint_reader.is_there(path):
    raise _error(
      f'{path} is no model: expected a log directory, a checkpoint without its '
      'ending, a SavedModel or a .keras file'
    )
  with checkpoint_reader.Reader(path) as reader:
    yield Source(path, reader.shapes, reader.dtypes, reader.read, reader)


@functools.lru_cache(maxsize=1)
def _read_keras(path: str) -> Source:
  import keras  # noqa: PLC0415  Only for a Keras model.

  try:
    with runtime.eagerly():
      model: Any = keras.models.load_model(path, compile=False)
      found = {}
      for weight in model.weights:
        # Keras may leave the model's name out of a path, or not.
        inner = weight.path.removeprefix(f'{model.name}/')
        for name in weight.path, inner, f'{model.name}/{inner}':
          found[name] = np.asarray(weight)
  except Exception as error:  # Keras may raise anything.
    reason = ' '.join(str(error).split())[:200]
    raise _error(f'{path} cannot be read as a Keras model: {reason}') from error
  return Source(
    path,
    {name: list(value.shape) for name, value in found.items()},
    {name: tf.as_dtype(value.dtype) for name, value in found.items()},
    found.__getitem__,
  )


def _choose_values(names: Iterable[str]) -> list[str]:
  """Returns the names without slots and other things of an optimizer."""
  known = {*names}

  def is_beside(name: str) -> bool:
    parts = name.split('/')
    starts = ('/'.join(parts[:i]) for i in range(1, len(parts)))
    return parts[-1] in _OF_OPTIMIZERS or any(s in known for s in starts)

  return [name for name in known if not is_beside(name)]


def _list(names: Iterable[str]) -> str:
  return groups_lib.shorten(sorted(names)) or 'none'


def _error(text: str) -> cli.UsageError:
  return cli.UsageError(f'--warm_start={_WARM_START.value}: {text}')
