"""Gives variables the values that a checkpoint has of them.

It does what a tf.train.Saver does, for any checkpoint of this package, partial
or not, here or in a store, and once the checkpoint is known to fit the model.
Large tables, and what an optimizer keeps beside them, are read and set in
slices, so neither this process nor a ps has two copies of one.

A table whose rows are made may have room for more keys than in the checkpoint:
a full table goes on with a larger one. Such a table (tables/new_rows.py), and
what an optimizer keeps beside it, consists of blocks of rows. Each block gets
longer; the new rows at its end are like the one that is never used.
"""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import tensorflow.compat.v1 as tf

from distmnist import graph_record, tf_internals
from distmnist.common import cli, partial_names
from distmnist.logdir import checkpoint_reader
from distmnist.tables import (
  key_map,
  new_rows,
  shard_slices,
  sparse_table,
  stored_table,
  table_saver,
)

_log = logging.getLogger(__name__)


class Growth(NamedTuple):
  """A table that has room for more keys than in a checkpoint.

  Attributes:
    table: its variables are TABLE/keys, TABLE/rows and TABLE/rows/... in the
      checkpoint.
    before, after: the rows of a block in the checkpoint and in the model.
  """

  table: str
  before: int
  after: int

  def grow(self, shapes: Mapping[str, list[int]]) -> dict[str, list[int]]:
    """Returns the shapes after it of those variables that are larger then."""
    before, after = (new_rows.NUM_BUCKETS * n for n in self[1:])
    starts = f'{self.table}/keys/', f'{self.table}/rows/'
    return {
      name: [after, *shape[1:]]
      for name, shape in shapes.items()
      if f'{name}/'.startswith(starts) and shape[:1] == [before]
    }


class _Target(NamedTuple):
  """A variable, or a shard of one, and what it is called in a checkpoint."""

  variable: tf.Variable
  name: str
  part: checkpoint_reader.Slice | None


class _Whole(NamedTuple):
  """One that is set at once: the op, and what is fed to it."""

  target: _Target
  assign: tf.Operation
  value: tf.Tensor


class _Sliced(NamedTuple):
  """One that is set in slices: the ops, and what is fed to them."""

  target: _Target
  make_room: tf.Operation
  set_rows: tf.Operation
  begin: tf.Tensor
  values: tf.Tensor


# Of a partitioned one its shards. Or by name in the checkpoint, whole ones.
Variables = Sequence[tf.Variable] | Mapping[str, tf.Variable]


class Values:
  """The values that variables of a graph get from a checkpoint."""

  def __init__(
    self,
    variables: Variables | None = None,
    stored: stored_table.StoredTables | None = None,
  ) -> None:
    """
    Args:
      variables: None for all global variables of the default graph.
      stored: tables of the model that stay in the checkpoint.
    """
    self._graph = tf.get_default_graph()
    self._record = graph_record.current()
    self._stored = stored
    targets = _find_targets(
      tf.global_variables() if variables is None else variables
    )
    self._wanted = {name: (shape, dtype) for _, name, shape, dtype in targets}
    self._targets = [target for target, *_ in targets]

  def check(self, path: str) -> None:
    """Checks that a checkpoint fits the variables.

    Whole variables are compared: the number of shards does not matter.

    Raises:
      cli.RunError: unreadable, or a variable is missing or has another shape or
        dtype.
    """
    with checkpoint_reader.Reader(path) as reader:
      self._prepare(path, reader)

  @contextlib.contextmanager
  def reading(self, path: str) -> Iterator[Callable[..., np.ndarray]]:
    """Opens a checkpoint that fits, for as long as the context lasts.

    Yields:
      read(name) -> the array that a variable gets; read(name, first, size) ->
      `size` rows of it, from row `first`.

    Raises:
      as Restorer.restore does, also while it is read.
    """
    with checkpoint_reader.Reader(path) as reader:
      names, read = self._prepare(path, reader)

      def read_rows(
        name: str, first: int = 0, size: int | None = None
      ) -> np.ndarray:
        if size is None:
          return read(names[name], None)
        return read.read_rows(names[name], first, size)

      yield read_rows

  def _prepare(
    self, path: str, reader: checkpoint_reader.Reader
  ) -> tuple[dict[str, str], _Read]:
    """Checks that a checkpoint fits.

    Returns:
      ({name: the name in this checkpoint} of what is to be read, what reads).
    """
    names = {}
    optional = [v.op.name for v in self._record.optional]
    for name in self._wanted:
      find_other = self._record.other_names.get(name, lambda _: None)
      found = name if name in reader.shapes else find_other(reader.shapes)
      if found or name not in optional:
        names[name] = found or name
    growths = self._find_growths(path, reader.shapes)
    shapes = reader.shapes | {
      name: shape
      for growth in growths
      for name, shape in growth.grow(reader.shapes).items()
    }
    wanted = {names[name]: self._wanted[name] for name in names}
    if self._stored:
      specs = self._stored.specs.items()
      wanted |= {n: (spec.shape.as_list(), spec.dtype) for n, spec in specs}
    _check_fits(path, wanted, shapes, reader.dtypes)
    grown = {n: g for g in growths for n in g.grow(reader.shapes)}
    kept = self._stored.specs if self._stored else {}
    return names, _Read(
      reader, {n: g for n, g in grown.items() if n not in kept}
    )

  def _find_growths(
    self, path: str, shapes: Mapping[str, list[int]]
  ) -> list[Growth]:
    tables = {
      sparse_table.find_name(found.rows): found.new_rows
      for found in key_map.get_all(self._graph)
    }
    if self._stored:
      tables |= self._stored.new_rows
    growths = []
    for table, new in tables.items():
      [size] = shapes.get(f'{table}/keys', [0])
      before, after = size // new_rows.NUM_BUCKETS, new.rows_in_bucket
      if before > after:
        raise cli.RunError(
          f'checkpoint {path} has {size:,} rows in the table {table!r}, and '
          f'the model {new.num_positions:,}: a capacity may become larger, not '
          'smaller; give NewRows the capacity it had, or another --logdir'
        )
      if 0 < before < after:
        growths.append(Growth(table, before, after))
    return growths


class Restorer(Values):
  """Restores the variables of a graph; made before the graph is final."""

  def __init__(
    self,
    variables: Variables | None = None,
    device: str = '/cpu:0',
    stored: stored_table.StoredTables | None = None,
    slice_bytes: int = partial_names.SLICE_BYTES,
  ) -> None:
    """
    Args:
      variables, stored: as of Values.
      device: the CPU of this process.
      slice_bytes: the most of a table that is read and set at once; a row is
        never cut.
    """
    super().__init__(variables, stored)
    self._slice_bytes = slice_bytes
    tables = [*table_saver.find_shards(), *key_map.get_all_keys()]
    large = shard_slices.choose_large(tables, slice_bytes)
    self._whole: list[_Whole] = []
    self._sliced: list[_Sliced] = []
    with tf.name_scope('restorer'):
      for target in self._targets:
        if any(target.variable is each for each in large):
          self._sliced.append(_build_sliced(target, device))
        else:
          self._whole.append(_build_whole(target, device, slice_bytes))

  def restore(
    self,
    session: tf.Session,
    path: str,
    say: Callable[[str], None] = _log.info,
  ) -> list[tf.Variable]:
    """Gives the variables the values of a checkpoint.

    The maps of keys are to be filled afterwards; see key_map.fill.

    Args:
      say: is given a line on a checkpoint that is partial, or that has smaller
        tables.

    Returns:
      Those that the checkpoint lacks, and may lack.

    Raises:
      checkpoint_reader.DamageError: the checkpoint is not as it was written.
      cli.PassingError: it cannot be read.
      cli.RunError: it does not fit.
      tf.errors.OpError: a ps is gone, say.
    """
    with checkpoint_reader.Reader(path) as reader:
      names, read = self._prepare(path, reader)
      if reader.base:
        say(f'{path} has the rows touched since {reader.base}: reading both')
      for growth in sorted(set(read.growths.values())):
        before, after = (new_rows.NUM_BUCKETS * n for n in growth[1:])
        say(
          f'the table {growth.table!r} gets {after:,} rows instead of the '
          f'{before:,} in {path}'
        )
      self._restore_whole(session, names, read)
      for sliced in self._sliced:
        self._restore_sliced(session, sliced, read)
    targets = [whole.target for whole in self._whole]
    return [t.variable for t in targets if t.name not in names]

  def _restore_whole(
    self, session: tf.Session, names: Mapping[str, str], read: _Read
  ) -> None:
    """Sets variables, so many at once that they have the bytes of a slice."""
    feed, ops, num_bytes = {}, [], 0

    def run() -> None:
      session.run(ops, feed)
      feed.clear()
      ops.clear()

    for target, assign, value in self._whole:
      if target.name not in names:
        continue
      size = shard_slices.count_bytes(target.variable)
      # Two variables may begin with the same tensor.
      if num_bytes + size > self._slice_bytes or value in feed:
        run()
        num_bytes = 0
      feed[value] = read(names[target.name], target.part)
      ops.append(assign)
      num_bytes += size
    run()

  def _restore_sliced(
    self, session: tf.Session, sliced: _Sliced, read: _Read
  ) -> None:
    session.run(sliced.make_room)
    variable, name, _ = sliced.target
    for part in shard_slices.cut(variable, self._slice_bytes):
      size = part.end - part.begin
      place = checkpoint_reader.Slice(part.first, size, part.place)
      feed = {sliced.begin: part.begin, sliced.values: read(name, place)}
      session.run(sliced.set_rows, feed)
      del feed  # Before the next slice is read.


class _Read:
  """Reads variables of a checkpoint as the model has them."""

  def __init__(
    self, reader: checkpoint_reader.Reader, growths: Mapping[str, Growth]
  ) -> None:
    self._reader, self.growths = reader, growths
    self._unused: dict[tuple[str, int], np.ndarray] = {}

  def __call__(
    self, name: str, part: checkpoint_reader.Slice | None
  ) -> np.ndarray:
    growth = self.growths.get(name)
    if growth is None:
      return self._reader.read(name, part)
    if part is None:
      size = new_rows.NUM_BUCKETS * growth.after
      part = checkpoint_reader.Slice(0, size, '')
    read_rows = functools.partial(self._reader.read_rows, name)
    if len(self._reader.find_slices(name)) == 1:
      whole = self._reader.read(name)  # Not once for each block.

      def read_rows(first: int, size: int) -> np.ndarray:
        return whole[first : first + size]

    return np.concatenate(list(self._grow(name, growth, part, read_rows)))

  def read_rows(self, name: str, first: int, size: int) -> np.ndarray:
    """Returns some rows, of which no more is in memory than they are stored."""
    read = functools.partial(self._reader.read_rows, name)
    growth = self.growths.get(name)
    if growth is None:
      return read(first, size)
    part = checkpoint_reader.Slice(first, size, '')
    return np.concatenate(list(self._grow(name, growth, part, read)))

  def _grow(
    self,
    name: str,
    growth: Growth,
    part: checkpoint_reader.Slice,
    read_rows: Callable[[int, int], np.ndarray],
  ) -> Iterator[np.ndarray]:
    """Yields the rows of a part, of those that `read_rows` gives."""
    first, end = part.first, part.first + part.size
    while first < end:
      block, place = divmod(first, growth.after)
      begin = block * growth.before
      size = min(growth.after - place, end - first)
      kept = min(size, max(0, growth.before - place))
      if kept:
        yield read_rows(begin + place, kept)
      if kept < size:
        if (name, block) not in self._unused:
          unused = read_rows(begin + new_rows.CLEAN_ROW, 1)
          self._unused[name, block] = unused
        yield np.repeat(self._unused[name, block], size - kept, axis=0)
      first += size


def _find_targets(
  variables: Variables,
) -> list[tuple[_Target, str, list[int], tf.DType]]:
  """Returns [(target, name, shape, dtype)], the last three of the whole."""
  if isinstance(variables, Mapping):
    return [
      (
        _Target(variable, name, None),
        *(name, variable.shape.as_list(), variable.dtype.base_dtype),
      )
      for name, variable in variables.items()
    ]
  found = []
  for variable in variables:
    shard = tf_internals.get_slice(variable)  # The only place that knows it.
    name, shape, part = variable.op.name, variable.shape.as_list(), None
    if shard is not None:
      first, size = shard.var_offset[0], shard.var_shape[0]
      part = checkpoint_reader.Slice(first, size, shard.spec)
      name, shape = shard.full_name, list(shard.full_shape)
    target = _Target(variable, name, part)
    found.append((target, name, shape, variable.dtype.base_dtype))
  return found


def _build_whole(target: _Target, device: str, slice_bytes: int) -> _Whole:
  variable = target.variable
  if shard_slices.count_bytes(variable) <= slice_bytes:
    initializer = variable.initializer
    return _Whole(target, initializer, initializer.inputs[1])
  # What is fed where a variable is travels in one message with all else that
  # is fed there, and a message has at most 2 GB.
  with tf.device(device):
    value = tf.placeholder(variable.dtype.base_dtype, variable.shape)
  return _Whole(target, variable.assign(value, read_value=False), value)


def _build_sliced(target: _Target, device: str) -> _Sliced:
  variable = target.variable
  dtype, shape = variable.dtype.base_dtype, variable.shape.as_list()
  with tf.device(device):
    begin = tf.placeholder(tf.int64, [])
    values = tf.placeholder(dtype, [None, *shape[1:]])
  with tf.device(variable.device):
    # Memory of its own, shared with no constant, without time to fill it.
    make_room = tf.raw_ops.AssignVariableOp(
      resource=variable.handle,
      value=tf.raw_ops.Empty(shape=shape, dtype=dtype),
    )
    rows = tf.range(begin, begin + tf.shape(values, out_type=tf.int64)[0])
    set_rows = sparse_table.set_rows(variable, rows, values)
  return _Sliced(target, make_room, set_rows, begin, values)


def _check_fits(
  path: str,
  wanted: Mapping[str, tuple[list[int], tf.DType]],
  shapes: Mapping[str, list[int]],
  dtypes: Mapping[str, tf.DType],
) -> None:
  for name, (shape, dtype) in wanted.items():
    if name not in shapes:
      raise cli.RunError(
        f'checkpoint {path} has no {name}: it comes from another model, '
        'optimizer (groups of the problem, too), --strategy or --ema_decay; '
        'give the flags of it, or another --logdir'
      )
    has = None
    if shapes[name] != shape:
      has = f'with shape {shapes[name]}, but the model has {shape}'
    elif dtypes[name] != dtype:
      has = f'in {dtypes[name].name}, but the model has {dtype.name}'
    if has:
      raise cli.RunError(
        f'checkpoint {path} has {name} {has}: it comes from another model; '
        'give the flags it was trained with, or another --logdir'
      )
