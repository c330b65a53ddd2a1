"""Which rows of a table were touched since it was last saved whole.

Beside each shard of a table that is saved in slices, its ps has a mark for each
row, which is in no checkpoint. A row is marked once its new values are there.
So if a save first clears the marks and then reads the rows, a row whose new
values it misses is marked again afterwards.

Any chief writes a number of its own beside the marks when it clears them. As
long as that number is there no other chief, such as one that was suspended and
replaced, has cleared them.
"""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow.compat.v1 as tf
from absl import flags

from distmnist import graph_record
from distmnist.common import partial_names
from distmnist.tables import shard_slices
from distmnist.transport import ps_state

_SAVE_TABLES = flags.DEFINE_enum(
  'save_tables',
  'all',
  ['all', 'touched'],
  'Which rows of large sparse tables a checkpoint has. all: all of them; '
  'touched: those touched since the last checkpoint that has all, which is '
  'written now and then, and kept as long as it is needed.',
)
# What is beside marks that no chief has cleared for a checkpoint.
NO_CHIEF = 0


class TouchedRows:
  """The marks of the rows of a shard.

  Attributes:
    rows: [rows, width], the shard.
    num_bytes: what the marks take on its ps.
  """

  def __init__(self, rows: tf.Variable) -> None:
    self.rows = rows
    self.num_bytes = size = int(rows.shape[0])
    # For the setter of devices these are no variables to be placed.
    with tf.device(None), tf.device(rows.device):
      self._marks, self._cleared_by = (
        ps_state.Variable(dtype, shape, f'{rows.op.name}/{name}')
        for name, dtype, shape in (
          ('touched', tf.bool, [size]),
          ('cleared_by', tf.int64, []),
        )
      )

  def mark(self, rows: tf.Tensor) -> tf.Operation:
    """Returns the op after which `rows`, int64 [n], are marked."""
    return self._marks.scatter(rows, tf.constant(True))

  def build_clear(self, chief: tf.Tensor) -> tf.Operation:
    """Returns the op that clears all marks, for the chief of this number."""
    with tf.device(self.rows.device):
      signed = self._cleared_by.assign(chief)
      # In this order: who finds cleared marks also finds who cleared them.
      with tf.control_dependencies([signed]):
        return self._marks.assign(tf.zeros([self.num_bytes], tf.bool))

  def build_find(
    self, begin: tf.Tensor, end: tf.Tensor
  ) -> tuple[tf.Tensor, tf.Tensor]:
    """Finds marked rows.

    Args:
      begin, end: int64 scalars, the range to look in.

    Returns:
      (int64 [n], int64 scalar): the rows, in order, and who has cleared the
      others.
    """
    with tf.device(self.rows.device):
      rows = tf.range(begin, end)
      marks = self._marks.gather(rows)
      with tf.control_dependencies([marks]):
        cleared_by = self._cleared_by.read()
      return tf.boolean_mask(rows, marks), cleared_by


def add(shards: Sequence[tf.Variable]) -> None:
  """Gives all shards of a table marks if --save_tables needs them."""
  # Also where a rule is made by its class, and no flags were parsed.
  if flags.FLAGS[_SAVE_TABLES.name].value != 'touched':
    return
  for shard in shard_slices.choose_large(shards, partial_names.SLICE_BYTES):
    graph_record.current().touched_rows.append(TouchedRows(shard))


def get_all() -> list[TouchedRows]:
  """Returns the marks of all shards of the default graph."""
  return list(graph_record.current().touched_rows)


def build_clear_all() -> list[tf.Operation]:
  """Returns the ops that give a new center its marks, none of them set.

  Without them there are no marks to set.
  """
  nobody = tf.constant(NO_CHIEF, tf.int64)
  return [touched.build_clear(nobody) for touched in get_all()]


def find(variable: tf.Variable) -> TouchedRows | None:
  """Returns the marks of a shard, also by what is beside it."""
  for touched in get_all():
    name = touched.rows.op.name
    if f'{variable.op.name}/'.startswith(f'{name}/'):
      return touched
  return None


def mark_after(
  ops: list[tf.Operation], shard: tf.Variable, rows: tf.Tensor
) -> list[tf.Operation]:
  """Returns the ops after which `rows`, int64 [n], are marked.

  Args:
    ops: they update these rows; returned if there are no marks.
  """
  touched = find(shard)
  if touched is None:
    return ops
  with tf.control_dependencies(ops):
    return [touched.mark(rows)]
