"""Saves the rows touched since the last whole checkpoint, the base.

A partial checkpoint (common/partial_names.py) has these rows instead of whole
tables. Each one has all rows touched since the base, so a checkpoint is at most
two. A save is whole again if

  there is no base in this session of the chief
  as many as MOST_PARTIAL partial ones have followed it
  more than MOST_TOUCHED of the rows were touched in the last one
  another chief has cleared the marks meanwhile
  the one before it has failed
"""

import os
import pathlib
import random
import weakref
from typing import NamedTuple

import tensorflow.compat.v1 as tf

from distmnist.common import partial_names
from distmnist.tables import shard_slices, touched_rows

# How many partial checkpoints follow a base, and the share of rows above which
# no more do.
MOST_PARTIAL = 10
MOST_TOUCHED = 0.5


class _Base(NamedTuple):
  name: str
  hash: str
  session: weakref.ref
  chief: int


class _Shard(NamedTuple):
  """A shard, and the op that saves rows of a range with what it tells."""

  variable: tf.Variable
  save: tf.Operation
  num_rows: tf.Tensor
  cleared_by: tf.Tensor


class TouchedSaver:
  """Knows the base, and saves what has been touched since then.

  Attributes:
    shards: list of tf.Variable, whose touched rows it saves: all those that
      have marks, or are beside such a shard.
  """

  def __init__(self, shards, device, slice_bytes):
    """
    Args:
      shards: list of tf.Variable; those without marks are left out.
      device: str, the CPU of the process that writes files.
      slice_bytes: int, see shard_slices.cut.
    """
    self._slice_bytes = slice_bytes
    self._base, self._num_partial = None, 0
    self._chief_v = touched_rows.NO_CHIEF
    self.shards = [v for v in shards if touched_rows.find(v)]
    if not self.shards:
      return
    self._path = tf.placeholder(tf.string, [], 'path')
    self._range = tf.placeholder(tf.int64, [3], 'range')
    self._names = tf.placeholder(tf.string, [2], 'names')
    self._chief = tf.placeholder(tf.int64, [], 'chief')
    self._shards = [self._build(shard, device) for shard in self.shards]
    self._clear = [t.build_clear(self._chief) for t in touched_rows.get_all()]
    self._hash = tf.placeholder(tf.string, [], 'hash')
    self._base_name = tf.placeholder(tf.string, [1], 'base')
    with tf.device(device):
      self._save_base = tf.raw_ops.SaveV2(
        prefix=self._path,
        tensor_names=self._base_name,
        shape_and_slices=[''],
        tensors=[self._hash],
      )

  def _build(self, shard, device):
    begin, end, first = tf.unstack(self._range)
    rows, cleared_by = touched_rows.find(shard).build_find(begin, end)
    with tf.device(shard.device):
      # After the marks, so that a marked row has its new values.
      values = shard.sparse_read(rows)
      positions = rows + (first - begin)
    with tf.device(device):
      save = tf.raw_ops.SaveV2(
        prefix=self._path,
        tensor_names=self._names,
        shape_and_slices=['', ''],
        tensors=[positions, values],
      )
    return _Shard(shard, save, tf.size(rows), cleared_by)

  @property
  def base(self):
    """The file's name (str) of the base of the next save; None if whole."""
    return self._base and self._base.name

  def forget_base(self):
    """Makes the next save a whole one."""
    self._base = None

  def may_leave_rows(self, session):
    """Whether the next save may be partial."""
    base = self._base
    if base is None or base.session() is not session:
      return False
    return self._num_partial < MOST_PARTIAL

  def begin_whole(self, session):
    """Clears the marks; to be called before any row is read."""
    self._base = None
    if self.shards:
      self._chief_v = random.SystemRandom().getrandbits(62) + 1
      session.run(self._clear, {self._chief: self._chief_v})

  def end_whole(self, session, path):
    """Makes the checkpoint written at `path` the base of those that follow."""
    if self.shards:
      index = pathlib.Path(f'{path}.index').read_bytes()
      self._base = _Base(
        os.path.basename(path),
        partial_names.compute_hash(index),
        weakref.ref(session),
        self._chief_v,
      )
      self._num_partial = 0

  def save(self, session, make_part):
    """Saves the touched rows, and the name of their base.

    Args:
      session: tf.Session.
      make_part: callable() -> path (str) of the next part of the checkpoint.

    Returns:
      Whether these are all rows touched since the base. If not, the base is
      forgotten.
    """
    base, num_touched = self._base, 0
    for shard in self._shards:
      name = shard_slices.find_place(shard.variable)[0]
      for part in shard_slices.cut(shard.variable, self._slice_bytes):
        rows = part.first, part.first + part.end - part.begin
        feed = {
          self._path: make_part(),
          self._range: (part.begin, part.end, part.first),
          self._names: partial_names.name_touched(name, *rows),
        }
        _, num, chief = session.run(shard[1:], feed)
        num_touched += num
        if chief != base.chief:
          self._base = None
          return False
    feed = {
      self._path: make_part(),
      self._base_name: [partial_names.name_base(base.name)],
      self._hash: base.hash,
    }
    session.run(self._save_base, feed)
    self._num_partial += 1
    num_rows = sum(int(shard.shape[0]) for shard in self.shards)
    if num_touched > MOST_TOUCHED * num_rows:
      self._base = None
    return True
