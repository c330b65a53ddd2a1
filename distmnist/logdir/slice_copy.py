"""Copies variables between checkpoints, of a large one some rows at a time."""

import contextlib

import tensorflow.compat.v1 as tf

from distmnist.common import partial_names
from distmnist.logdir import checkpoint_reads


@contextlib.contextmanager
def opened():
  """Yields a tf.Session on the CPU, in whose graph copies are made."""
  with tf.Graph().as_default(), tf.device('/cpu:0'):
    config = tf.ConfigProto(device_count={'GPU': 0})
    with tf.Session(config=config) as session:
      yield session


class SliceCopy:
  """Writes a checkpoint in parts, which `merge` makes one.

  Attributes:
    session: tf.Session; ops are added to its graph.
  """

  def __init__(self, session, target):
    """
    Args:
      session: see above.
      target: str, the checkpoint to write, in an empty folder.
    """
    self.session = session
    self._target, self._parts = target, []
    self._copies = {}

  def make_part(self):
    """Returns the path (str) of the next part."""
    self._parts.append(f'{self._target}.part_{len(self._parts)}')
    return self._parts[-1]

  def copy(self, path, names, kind):
    """Copies variables as they are.

    Args:
      path: str, of a checkpoint on this machine.
      names: list of str.
      kind: str, what the name of an op that reads begins with.
    """
    reader = checkpoint_reads.open_reader(path)
    shapes = reader.get_variable_to_shape_map()
    large = {
      n
      for n in names
      if shapes[n] and count_bytes(reader, n) > partial_names.SLICE_BYTES
    }
    self._copy_small(path, reader, sorted(set(names) - large), kind)
    for name in sorted(large):
      for begin, size in cut(reader, name):
        place = partial_names.name_place(shapes[name], begin, size)
        self._copy_slice(path, reader, name, place, kind)

  def _copy_small(self, path, reader, names, kind):
    dtypes = reader.get_variable_to_dtype_map()
    every = {'tensor_names': names, 'shape_and_slices': [''] * len(names)}
    values = tf.raw_ops.RestoreV2(
      prefix=path,
      dtypes=[dtypes[name] for name in names],
      name=f'{kind}_of_all',
      **every,
    )
    self.session.run(
      tf.raw_ops.SaveV2(prefix=self.make_part(), tensors=values, **every)
    )

  def _copy_slice(self, path, reader, name, place, kind):
    dtype = reader.get_variable_to_dtype_map()[name]
    key = path, dtype, kind
    if key not in self._copies:
      self._copies[key] = _build_copy(path, dtype, kind)
    op, *fed = self._copies[key]
    given = name, place, self.make_part()
    self.session.run(op, dict(zip(fed, given, strict=True)))

  def merge(self):
    """Makes the parts one checkpoint."""
    self.session.run(
      tf.raw_ops.MergeV2Checkpoints(
        checkpoint_prefixes=self._parts, destination_prefix=self._target
      )
    )


def _build_copy(path, dtype, kind):
  """Returns (op that copies a slice, placeholders of name, place, part)."""
  name, place, part = (tf.placeholder(tf.string, []) for _ in range(3))
  named = {'tensor_names': [name], 'shape_and_slices': [place]}
  [value] = tf.raw_ops.RestoreV2(
    prefix=path, dtypes=[dtype], name=f'{kind}_of_slice', **named
  )
  save = tf.raw_ops.SaveV2(prefix=part, tensors=[value], **named)
  return save, name, place, part


def cut(reader, name):
  """Yields (first row, number of rows) of slices of a variable, in order."""
  size = reader.get_variable_to_shape_map()[name][0]
  rows = max(1, partial_names.SLICE_BYTES * size // count_bytes(reader, name))
  for begin in range(0, size, rows):
    yield begin, min(rows, size - begin)


def count_bytes(reader, name):
  """Returns the bytes (int) of a variable of a tf.train.CheckpointReader."""
  size = reader.get_variable_to_dtype_map()[name].size
  for n in reader.get_variable_to_shape_map()[name]:
    size *= n
  return size
