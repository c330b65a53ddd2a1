"""Writes the values of a session as a checkpoint, and its tables in slices.

A tf.train.Saver reads each variable whole, and TensorFlow then copies a table
whose rows have been pulled, on its ps and once more on the chief. Here the
chief takes some rows of one shard at a time, which the ps gathers, and writes
them as a separate part of the checkpoint; at the end the parts get one index.
What is written is what a tf.train.Saver writes: variables under their names,
for any reader and any number of ps.

Where rows are made in a step (key_shard.py), keys are written before all else:
a row made in the meantime then has values in the checkpoint but no key, rather
than a key but no values. No row changes its key meanwhile (row_reuse.py).

With --save_tables=touched most checkpoints are partial
(common/partial_names.py): they have the rows touched since the last whole one,
the base, and so a checkpoint is at most two. One is whole again if

  there is no base in this session of the chief
  as many as MOST_PARTIAL partial ones have followed it
  more than MOST_TOUCHED of the rows were touched in the last one
  another chief has cleared the marks meanwhile (touched_rows.py)
  the one before it has failed
"""

from __future__ import annotations

import os
import pathlib
import random
import weakref
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import tensorflow.compat.v1 as tf

from distmnist.common import partial_names
from distmnist.tables import (
  key_map,
  row_reuse,
  shard_slices,
  sparse_table,
  touched_rows,
)

# How many partial checkpoints follow a base, and the share of rows above which
# no more do.
MOST_PARTIAL = 10
MOST_TOUCHED = 0.5


class _Base(NamedTuple):
  """The whole checkpoint on which partial ones are put."""

  name: str
  hash: str
  session: weakref.ref[tf.Session]
  chief: int


class _Shard(NamedTuple):
  """A shard, and the op that saves the rows of a slice.

  Attributes:
    name: of the whole variable.
    save: saves all rows of a slice.
    save_touched: (op that saves those that were touched, their number, who has
      cleared the marks of the others); () if it has no marks.
  """

  variable: tf.Variable
  name: str
  save: tf.Operation
  save_touched: tuple[()] | tuple[tf.Operation, tf.Tensor, tf.Tensor]


class TableSaver:
  """Saves all global variables, tables in slices; see saving.Saver.

  The optimizer's variables beside a table are taken as the table is; a table
  with no shard larger than a slice is treated like any other variable.

  Attributes:
    goes_beside: whether steps may run while it saves.
  """

  def __init__(
    self,
    device: str,
    slice_bytes: int = partial_names.SLICE_BYTES,
    may_mix: bool = False,
  ) -> None:
    """
    Args:
      device: the CPU of the process that writes files.
      slice_bytes: the most in a slice; a row is never cut.
      may_mix: whether the rows of a checkpoint may be of several steps, as they
        are for each worker of an asynchronous rule.
    """
    keys = key_map.get_all_keys()
    shards = [
      v
      for v in shard_slices.choose_large(find_shards(), slice_bytes)
      if not key_map.is_keys(v)
    ]
    names = {v.op.name for v in [*keys, *shards]}
    rest = [v for v in tf.global_variables() if v.op.name not in names]
    self._rest = tf.train.Saver(rest, allow_empty=True)
    self._device, self._slice_bytes = device, slice_bytes
    self._keys: list[_Shard] = []
    self._shards: list[_Shard] = []
    self._clear: list[tf.Operation] = []
    self._base: _Base | None = None
    self._num_partial = 0
    self.goes_beside = may_mix and bool(shards)
    if names:
      with tf.name_scope('table_saver'):
        self._build(keys, shards)

  def build(self) -> None:
    """Does nothing: tf.train.Scaffold calls it."""

  def _build(
    self, keys: Sequence[tf.Variable], shards: Sequence[tf.Variable]
  ) -> None:
    self._path = tf.placeholder(tf.string, [], 'path')
    self._parts = tf.placeholder(tf.string, [None], 'parts')
    # The rows of a shard: the first, the end, and where the first one is in the
    # whole variable.
    self._range = tf.placeholder(tf.int64, [3], 'range')
    self._names = tf.placeholder(tf.string, [None], 'names')
    self._places = tf.placeholder(tf.string, [None], 'places')
    self._hash = tf.placeholder(tf.string, [], 'hash')
    self._chief = tf.placeholder(tf.int64, [], 'chief')
    with tf.device(self._device):
      self._merge = tf.raw_ops.MergeV2Checkpoints(
        checkpoint_prefixes=self._parts, destination_prefix=self._path
      )
      self._save_base = self._build_save([self._hash])
    self._keys = [self._build_shard(shard) for shard in keys]
    self._shards = [self._build_shard(shard) for shard in shards]
    if any(shard.save_touched for shard in self._shards):
      marks = touched_rows.get_all()
      self._clear = [each.build_clear(self._chief) for each in marks]

  def _build_save(self, tensors: list[tf.Tensor]) -> tf.Operation:
    with tf.device(self._device):
      return tf.raw_ops.SaveV2(
        prefix=self._path,
        tensor_names=self._names,
        shape_and_slices=self._places,
        tensors=tensors,
      )

  def _build_shard(self, shard: tf.Variable) -> _Shard:
    begin, end, first = tf.unstack(self._range)
    with tf.device(shard.device):
      # Not a read, which copies a table whose rows were pulled.
      values = shard.sparse_read(tf.range(begin, end))
    save, save_touched = self._build_save([values]), ()
    if marks := touched_rows.find(shard):
      rows, cleared_by = marks.build_find(begin, end)
      with tf.device(shard.device):
        # After the marks, so that a marked row has its new values.
        values = shard.sparse_read(rows)
        positions = rows + (first - begin)
      saved = self._build_save([positions, values])
      save_touched = saved, tf.size(rows), cleared_by
    name, *_ = shard_slices.find_place(shard)
    return _Shard(shard, name, save, save_touched)

  @property
  def base(self) -> str | None:
    """The file's name of the base of the next save; None if that is whole."""
    return self._base.name if self._base else None

  def forget_base(self) -> None:
    """Makes the next save a whole one."""
    self._base = None

  def save(self, session: tf.Session, path: str) -> str | None:
    """Writes a checkpoint.

    The caller sees to it that its base is there, and that it is forgotten if a
    checkpoint gets lost.

    Returns:
      The file's name of its base; None if it is whole.
    """
    if not (self._keys or self._shards):
      self._save_rest(session, path)
      return None
    with row_reuse.held(session):
      base = self._find_base(session)
      if base and self._save_partial(session, path, base):
        return base.name
      self._save_whole(session, path)
      return None

  def _find_base(self, session: tf.Session) -> _Base | None:
    """Returns what a partial checkpoint may be put on now."""
    base = self._base
    is_usable = base is not None and base.session() is session
    return base if is_usable and self._num_partial < MOST_PARTIAL else None

  def _save_whole(self, session: tf.Session, path: str) -> None:
    self._base, chief = None, random.SystemRandom().getrandbits(62) + 1
    # Before any row is read, so that no touched row is missed by the next one.
    session.run(self._clear, {self._chief: chief})
    parts = _Parts(path)
    self._save_slices(session, self._keys, parts)
    self._save_rest(session, parts.add())
    self._save_slices(session, self._shards, parts)
    self._merge_parts(session, parts)
    if self._clear:
      index = pathlib.Path(f'{path}.index').read_bytes()
      self._base = _Base(
        os.path.basename(path),
        partial_names.compute_hash(index),
        weakref.ref(session),
        chief,
      )
      self._num_partial = 0

  def _save_partial(self, session: tf.Session, path: str, base: _Base) -> bool:
    """Saves the rows touched since the base, and all else.

    Returns:
      Whether these are all of them. If not, the base is forgotten.
    """
    num_touched, num_rows = 0, 0
    parts = _Parts(path)
    self._save_slices(session, self._keys, parts)
    self._save_rest(session, parts.add())
    marked = [shard for shard in self._shards if shard.save_touched]
    for shard in marked:
      num_rows += int(shard.variable.shape[0])
      for part in shard_slices.cut(shard.variable, self._slice_bytes):
        rows = part.first, part.first + part.end - part.begin
        _, num, chief = session.run(
          shard.save_touched,
          {
            self._path: parts.add(),
            self._range: (part.begin, part.end, part.first),
            self._names: partial_names.name_touched(shard.name, *rows),
            self._places: ['', ''],
          },
        )
        num_touched += num
        if chief != base.chief:
          self._base = None
          return False
    session.run(
      self._save_base,
      {
        self._path: parts.add(),
        self._names: [partial_names.name_base(base.name)],
        self._places: [''],
        self._hash: base.hash,
      },
    )
    others = [shard for shard in self._shards if not shard.save_touched]
    self._save_slices(session, others, parts)
    self._merge_parts(session, parts)
    self._num_partial += 1
    if num_touched > MOST_TOUCHED * num_rows:
      self._base = None
    return True

  def _save_rest(self, session: tf.Session, path: str) -> None:
    self._rest.save(session, path, write_meta_graph=False, write_state=False)

  def _save_slices(
    self, session: tf.Session, shards: Iterable[_Shard], parts: _Parts
  ) -> None:
    for shard in shards:
      for part in shard_slices.cut(shard.variable, self._slice_bytes):
        session.run(
          shard.save,
          {
            self._path: parts.add(),
            self._range: (part.begin, part.end, part.first),
            self._names: [shard.name],
            self._places: [part.place],
          },
        )

  def _merge_parts(self, session: tf.Session, parts: _Parts) -> None:
    session.run(
      self._merge, {self._path: parts.target, self._parts: parts.paths}
    )


class _Parts:
  """The parts of a checkpoint, which are at last merged to one.

  Attributes:
    target: the path of the checkpoint.
  """

  def __init__(self, target: str) -> None:
    self.target = target
    self.paths: list[str] = []

  def add(self) -> str:
    """Returns the path of the next part."""
    self.paths.append(f'{self.target}.part_{len(self.paths)}')
    return self.paths[-1]


def find_shards() -> list[tf.Variable]:
  """Returns the shards of tables and of what an optimizer keeps beside them."""
  shapes = dict(
    shard_slices.find_place(v)[:2]
    for v in tf.get_collection(sparse_table.TABLES)
  )

  def is_found(variable: tf.Variable) -> bool:
    name, shape, _ = shard_slices.find_place(variable)
    # A slot is shaped like its table; other numbers of an optimizer are not.
    return name in shapes or shapes.get(name.rpartition('/')[0]) == shape

  return [v for v in tf.global_variables() if is_found(v)]
