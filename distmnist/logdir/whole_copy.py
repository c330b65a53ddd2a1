"""Puts a partial checkpoint and its base together to a whole one.

The names in a partial checkpoint are in common/partial_names.py. Of a table no
more than a slice, some rows, is in memory.
"""

import os
import pathlib

import tensorflow.compat.v1 as tf

from distmnist.cluster import errors
from distmnist.common import cli, partial_names
from distmnist.logdir import cached_copy, checkpoint_reads, slice_copy


class PartialError(checkpoint_reads.DamageError):
  """A checkpoint is of no use, as it or its base is not as it was written."""


def check_room(what, needed):
  """Checks that the scratch folder has room for a whole checkpoint.

  Args:
    what: str, what needs it.
    needed: int, bytes.

  Raises:
    cli.RunError: it has not.
  """
  cached_copy.check_room(
    f'{what}: to read a checkpoint of touched rows, a whole one is put '
    'together',
    needed,
  )


def put_together(path, base_path, target, base_name):
  """Writes a whole checkpoint.

  Args:
    path, base_path: str, of a partial checkpoint and its base, on this machine.
    target: str, in an empty folder.
    base_name: str, what the base is called in errors.

  Raises:
    PartialError: names what cannot be used, and why.
    tf.errors.OpError: what cannot be read now; see checkpoint_reads.
    cli.PassingError: `target` cannot be written.
  """
  with slice_copy.opened() as session:
    try:
      _Copy(session, path, base_path, target, base_name).run()
    except tf.errors.OpError as error:
      kind = error.op.name.partition('_of_')[0] if error.op else 'partial'
      is_read = kind in ('base', 'partial')
      if is_read and not checkpoint_reads.is_damage(error):
        raise
      why = errors.explain(error)
      if kind == 'base':
        why = _blame(base_name, 'is not whole', path) + f': {why}'
      elif kind != 'partial':
        what = f'{target} cannot be written: {why}'
        raise cli.choose_error(error)(what) from error
      raise PartialError(why) from error


class _Copy(slice_copy.SliceCopy):
  """Copies a partial checkpoint, and the rest of its tables from its base."""

  def __init__(self, session, path, base_path, target, base_name):
    super().__init__(session, target)
    self._base_name = base_name
    self._path, self._base_path = path, base_path
    self._partial = checkpoint_reads.open_reader(path)
    self._names = self._partial.get_variable_to_shape_map()
    self._base = self._open_base()
    self._built = {}

  def _open_base(self):
    expected = self._read_hash()
    index = pathlib.Path(f'{self._base_path}.index')
    if not index.exists():
      raise PartialError(_blame(self._base_name, 'is not there', self._path))
    if partial_names.compute_hash(index.read_bytes()) != expected:
      raise PartialError(
        _blame(self._base_name, 'was written anew', self._path)
      )
    base = checkpoint_reads.open_reader(self._base_path)
    names = base.get_variable_to_shape_map()
    needed = sum(slice_copy.count_bytes(base, name) for name in names)
    check_room(self._path, needed)
    return base

  def _read_hash(self):
    base = partial_names.find_base(self._names)
    try:
      return self._partial.get_tensor(partial_names.name_base(base)).decode()
    except Exception as error:  # Broken bytes raise errors of many kinds.
      if not checkpoint_reads.is_damage(error):
        raise
      raise PartialError(str(error) or type(error).__name__) from error

  def run(self):
    plain = [name for name in self._names if partial_names.is_plain(name)]
    self.copy(self._path, plain, 'partial')
    ranges = partial_names.find_ranges(self._names)
    for name in sorted(ranges):
      self._copy_table(name, ranges[name])
    self.merge()

  def _copy_table(self, name, ranges):
    shape = self._base.get_variable_to_shape_map().get(name, [0])
    ends = [0, *(end for _, end in ranges)]
    if ends[:-1] != [begin for begin, _ in ranges] or ends[-1] != shape[0]:
      raise PartialError(f'it lacks rows of {name}')
    dtype = self._base.get_variable_to_dtype_map()[name]
    if dtype not in self._built:
      self._built[dtype] = self._build(dtype)
    op, *fed = self._built[dtype]
    for begin, end in ranges:
      touched = partial_names.name_touched(name, begin, end)
      place = partial_names.name_place(shape, begin, end - begin)
      given = name, place, self.make_part(), begin, touched
      self.session.run(op, dict(zip(fed, given, strict=True)))

  def _build(self, dtype):
    """Returns (op that copies a slice, *placeholders): see `_copy_table`."""
    name, place, part = (tf.placeholder(tf.string, []) for _ in range(3))
    begin = tf.placeholder(tf.int64, [])
    touched = tf.placeholder(tf.string, [None])
    named = {'tensor_names': [name], 'shape_and_slices': [place]}
    [value] = tf.raw_ops.RestoreV2(
      prefix=self._base_path, dtypes=[dtype], name='base_of_slice', **named
    )
    rows, values = tf.raw_ops.RestoreV2(
      prefix=self._path,
      tensor_names=touched,
      shape_and_slices=['', ''],
      dtypes=[tf.int64, dtype],
      name='partial_of_rows',
    )
    at = tf.expand_dims(rows - begin, 1)
    value = tf.tensor_scatter_nd_update(value, at, values)
    save = tf.raw_ops.SaveV2(prefix=part, tensors=[value], **named)
    return save, name, place, part, begin, touched


def _blame(base, what, path):
  name = os.path.basename(path)
  return f'{base} {what}, and {name} has only the rows touched since then'
