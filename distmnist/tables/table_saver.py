"""Saves tables in slices: no process holds a copy of a whole one.

A Saver reads each variable whole, and TensorFlow then copies a table whose rows
have been pulled, on its ps and once more on the chief. Here the chief takes
some rows of one shard at a time, which the ps gathers, and writes them as a
separate part of the checkpoint; at the end the parts get one index. What is
written is what a Saver writes: variables under their names, for any reader and
any number of ps.

Where rows are made in a step (key_shard.py), keys are written before all else:
a row made in the meantime then has values in the checkpoint but no key, rather
than a key but no values. No row changes its key meanwhile (row_reuse.py).

With --save_tables=touched most checkpoints have only the rows touched since a
whole one; see touched_saver.py.
"""

import tensorflow.compat.v1 as tf

from distmnist.common import partial_names
from distmnist.tables import (
  key_map,
  row_reuse,
  shard_slices,
  sparse_table,
  touched_saver,
)


class TableSaver:
  """Like a tf.train.Saver of all variables, but takes tables in slices.

  The optimizer's variables beside a table are taken as the table is; a table
  with no shard larger than a slice is treated like any other variable.

  Attributes:
    goes_beside: bool, whether steps may run while it saves.
    touched: touched_saver.TouchedSaver, which knows the next save's base.
  """

  def __init__(
    self,
    device,
    slice_bytes=partial_names.SLICE_BYTES,
    may_mix=False,
    variables=None,
  ):
    """
    Args:
      device: str, the CPU of the process that writes and reads files.
      may_mix: bool, whether the rows of a checkpoint may be of several steps,
        as they are for each worker of an asynchronous rule.
      slice_bytes: int, the most in a slice; a row is never cut.
      variables: list of tf.Variable, with all tables; None: all there are.
    """
    keys = key_map.get_all_keys()
    shards = [
      v
      for v in shard_slices.choose_large(find_shards(), slice_bytes)
      if not key_map.is_keys(v)
    ]
    names = {v.op.name for v in [*keys, *shards]}
    saved = tf.global_variables() if variables is None else variables
    rest = [v for v in saved if v.op.name not in names]
    self._rest = tf.train.Saver(rest, allow_empty=True)
    self._slice_bytes = slice_bytes
    self._keys, self._shards = [], []
    self.goes_beside = may_mix and bool(shards)
    with tf.name_scope('table_saver'):
      if names:
        self._build(keys, shards, device)
      self.touched = touched_saver.TouchedSaver(shards, device, slice_bytes)

  def build(self):
    """Does nothing: tf.train.Scaffold calls it."""

  def _build(self, keys, shards, device):
    self._path = tf.placeholder(tf.string, [], 'path')
    self._parts = tf.placeholder(tf.string, [None], 'parts')
    self._begin = tf.placeholder(tf.int64, [], 'begin')
    self._end = tf.placeholder(tf.int64, [], 'end')
    self._place = tf.placeholder(tf.string, [], 'place')
    with tf.device(device):
      self._merge = tf.raw_ops.MergeV2Checkpoints(
        checkpoint_prefixes=self._parts, destination_prefix=self._path
      )
    self._keys, self._shards = (
      [self._build_shard(shard, device) for shard in group]
      for group in (keys, shards)
    )

  def _build_shard(self, shard, device):
    """Returns (shard, op that saves the rows of a slice)."""
    name, *_ = shard_slices.find_place(shard)
    with tf.device(shard.device):
      rows = tf.range(self._begin, self._end)
      # Not a read, which copies a table whose rows were pulled.
      value = shard.sparse_read(rows)
    with tf.device(device):
      save = tf.raw_ops.SaveV2(
        prefix=self._path,
        tensor_names=[name],
        shape_and_slices=tf.reshape(self._place, [1]),
        tensors=[value],
      )
    return shard, save

  def save(self, sess, save_path, global_step=None, **settings):
    """Writes a checkpoint, as a tf.train.Saver does; returns its path.

    It is partial if `touched` has a base; the caller sees to it that this base
    is there, and that it is forgotten if a checkpoint gets lost.
    """
    if not (self._keys or self._shards):
      return self._rest.save(sess, save_path, global_step, **settings)
    path = save_path if global_step is None else f'{save_path}-{global_step}'
    with row_reuse.held(sess):
      is_partial = self.touched.may_leave_rows(sess)
      if not (is_partial and self._save(sess, path, settings, True)):
        self.touched.begin_whole(sess)
        self._save(sess, path, settings, False)
        self.touched.end_whole(sess, path)
    return path

  def _save(self, sess, path, settings, is_partial):
    """Returns whether the checkpoint is written; see TouchedSaver.save."""
    parts = []

    def make_part():
      parts.append(f'{path}.part_{len(parts)}')
      return parts[-1]

    self._save_slices(sess, self._keys, make_part)
    self._rest.save(sess, make_part(), **settings | {'write_meta_graph': False})
    shards = self._shards
    if is_partial:
      if not self.touched.save(sess, make_part):
        return False
      touched = {v.op.name for v in self.touched.shards}
      shards = [shard for shard in shards if shard[0].op.name not in touched]
    self._save_slices(sess, shards, make_part)
    sess.run(self._merge, {self._path: path, self._parts: parts})
    return True

  def _save_slices(self, sess, shards, make_part):
    for shard, save in shards:
      for part in shard_slices.cut(shard, self._slice_bytes):
        feed = {
          self._begin: part.begin,
          self._end: part.end,
          self._place: part.place,
          self._path: make_part(),
        }
        sess.run(save, feed)


def find_shards():
  """Returns the shards of tables and of what an optimizer keeps beside them."""
  shapes = dict(
    shard_slices.find_place(v)[:2]
    for v in tf.get_collection(sparse_table.TABLES)
  )

  def is_found(variable):
    name, shape, _ = shard_slices.find_place(variable)
    # A slot is shaped like its table; other numbers of an optimizer are not.
    return name in shapes or shapes.get(name.rpartition('/')[0]) == shape

  return [v for v in tf.global_variables() if is_found(v)]
