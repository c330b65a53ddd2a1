"""Restores a model's variables, once a checkpoint fits it.

A table whose rows are made may have room for more keys than in the checkpoint:
a full table goes on with a larger one.
"""

from distmnist.common import cli
from distmnist.logdir import (
  checkpoint_files,
  checkpoint_reads,
  checkpoints,
  grown_copy,
  variable_specs,
)
from distmnist.tables import key_map, new_rows, sparse_table


def localize(path, graph, variables, stored=None):
  """Returns a path on this machine that a tf.train.Saver can restore.

  What is made for it is kept for a while: read it at once.

  Args:
    path: str, a checkpoint.
    graph: tf.Graph, the model's.
    variables: list or dict of what to restore; see checkpoints.check_fits.
    stored: {table: new_rows.NewRows} of tables that stay in the checkpoint, and
      do not grow here; see stored_table.StoredTables.

  Raises:
    cli.RunError: the checkpoint is unreadable or of another model, or there is
      no room for a copy of it.
  """
  found = variable_specs.read(path)
  shapes = {name: shape for name, (shape, _) in found.items()}
  maps = key_map.get_all(graph)
  own = {sparse_table.find_name(found.rows): found.new_rows for found in maps}
  growths = _find_growths(path, shapes, own)
  for growth in [*growths, *_find_growths(path, shapes, stored or {})]:
    for name, shape in growth.grow(shapes).items():
      found[name] = shape, found[name][1]
  checkpoints.check_fits(path, variables, found)
  return checkpoint_files.localize_grown(path, growths)


def restore(path, session, saver, variables, stored=None):
  """Restores a checkpoint in a session of this process.

  Args:
    path: str.
    session: tf.Session.
    saver: tf.train.Saver of `variables`.
    variables, stored: see `localize`.

  Raises:
    cli.RunError: as by `localize`, or the checkpoint is not whole.
    cli.PassingError: it cannot be read.
  """
  load(path, session, saver, localize(path, session.graph, variables, stored))
  key_map.fill(session)


def load(path, session, saver, local):
  """Restores a checkpoint of which `localize` has given the path `local`.

  Raises:
    checkpoint_reads.DamageError: it is not whole.
    cli.PassingError: it cannot be read.
    tf.errors.OpError: a ps is gone, say.
  """
  checkpoint_reads.trying(
    path, lambda: saver.restore(session, local), in_session=True
  )


def _find_growths(path, shapes, tables):
  """Returns the list of grown_copy.Growth of tables, {name: NewRows}."""
  growths = []
  for table, new in tables.items():
    [size] = shapes.get(f'{table}/keys', [0])
    before, after = size // new_rows.NUM_BUCKETS, new.rows_in_bucket
    if before > after:
      raise cli.RunError(
        f'checkpoint {path} has {size:,} rows in the table {table!r}, and the '
        f'model {new.num_positions:,}: a capacity may become larger, not '
        'smaller; give NewRows the capacity it had, or another --logdir'
      )
    if 0 < before < after:
      growths.append(
        grown_copy.Growth(
          table, new_rows.NUM_BUCKETS, before, after, new_rows.CLEAN_ROW
        )
      )
  return growths
