"""Copies a checkpoint to tables that have room for more keys.

A table whose rows are made (tables/new_rows.py) consists of blocks of
rows, and so does what an optimizer keeps beside it. Each block gets longer; the
new rows at its end are like the one that is never used.
"""

from typing import NamedTuple

import tensorflow.compat.v1 as tf

from distmnist.cluster import errors
from distmnist.common import cli, partial_names
from distmnist.logdir import cached_copy, checkpoint_reads, slice_copy


class Growth(NamedTuple):
  """A table that has room for more keys than in a checkpoint.

  Attributes:
    table: str; its variables are TABLE/keys, TABLE/rows and TABLE/rows/... in
      the checkpoint.
    num_blocks: int.
    before, after: int, the rows of a block in the checkpoint and in the model.
    unused: int, the row of each block that is never used.
  """

  table: str
  num_blocks: int
  before: int
  after: int
  unused: int

  def grow(self, shapes):
    """Returns {name: shape, a list} of the variables that are larger after it.

    Args:
      shapes: dict like that, of all variables before.
    """
    before, after = (self.num_blocks * n for n in (self.before, self.after))
    starts = f'{self.table}/keys/', f'{self.table}/rows/'
    return {
      name: [after, *shape[1:]]
      for name, shape in shapes.items()
      if f'{name}/'.startswith(starts) and shape[:1] == [before]
    }


def write(path, target, growths):
  """Writes the copy.

  Args:
    path: str, a whole checkpoint on this machine.
    target: str, in an empty folder.
    growths: list of Growth.

  Raises:
    tf.errors.OpError: `path` cannot be read; see checkpoint_reads.
    cli.PassingError: there is no room, or it cannot be written.
  """
  reader = checkpoint_reads.open_reader(path)
  shapes = reader.get_variable_to_shape_map()
  found = {name: growth for growth in growths for name in growth.grow(shapes)}
  needed = sum(
    slice_copy.count_bytes(reader, name)
    * (found[name].after / found[name].before if name in found else 1)
    for name in shapes
  )
  cached_copy.check_room(
    f'{path}: a copy with larger tables is written', int(needed)
  )
  with slice_copy.opened() as session:
    copy = slice_copy.SliceCopy(session, target)
    try:
      copy.copy(path, sorted(shapes.keys() - found.keys()), 'plain')
      for name, growth in sorted(found.items()):
        _copy_table(copy, path, reader, name, growth)
      copy.merge()
    except tf.errors.OpError as error:
      if error.op is None or error.op.type == 'RestoreV2':
        raise
      raise cli.choose_error(error)(
        f'checkpoint {path} cannot be copied to {target}, with larger '
        f'tables: {errors.explain(error)}'
      ) from error


def _copy_table(copy, path, reader, name, growth):
  """Copies a variable, as many whole blocks at once as a slice has."""
  shape = reader.get_variable_to_shape_map()[name]
  num, before, after = growth.num_blocks, growth.before, growth.after
  block_bytes = slice_copy.count_bytes(reader, name) // num
  step = max(1, partial_names.SLICE_BYTES // block_bytes)
  dtype = reader.get_variable_to_dtype_map()[name]
  place, target_place, part = (tf.placeholder(tf.string, []) for _ in range(3))
  named = {'tensor_names': [name]}
  [rows] = tf.raw_ops.RestoreV2(
    prefix=path, shape_and_slices=[place], dtypes=[dtype], **named
  )
  blocks = tf.reshape(rows, [-1, before, *shape[1:]])
  unused = blocks[:, growth.unused : growth.unused + 1]
  more = tf.repeat(unused, after - before, axis=1)
  larger = tf.reshape(tf.concat([blocks, more], 1), [-1, *shape[1:]])
  save = tf.raw_ops.SaveV2(
    prefix=part, shape_and_slices=[target_place], tensors=[larger], **named
  )
  target_shape = [num * after, *shape[1:]]
  for block in range(0, num, step):
    size = min(step, num - block)
    given = {
      place: partial_names.name_place(shape, block * before, size * before),
      target_place: partial_names.name_place(
        target_shape, block * after, size * after
      ),
      part: copy.make_part(),
    }
    copy.session.run(save, given)
