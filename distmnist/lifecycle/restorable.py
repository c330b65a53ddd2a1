"""Where a model's variables can be restored from, once a checkpoint fits it.

A table whose rows are made may have room for more keys than in the checkpoint:
a full table goes on with a larger one.
"""

from distmnist.common import cli
from distmnist.exchange.tables import key_map, new_rows, shard_slices
from distmnist.logdir import checkpoint_files, checkpoints, grown_copy


def localize(path, graph, variables):
  """Returns a path on this machine that a tf.train.Saver can restore.

  What is made for it is kept for a while: read it at once.

  Args:
    path: str, a checkpoint.
    graph: tf.Graph, the model's.
    variables: list or dict of what to restore; see checkpoints.check_fits.

  Raises:
    cli.RunError: the checkpoint is unreadable or of another model, or there is
      no room for a copy of it.
  """
  growths = _find_growths(path, graph)
  checkpoints.check_fits(path, variables, growths)
  return checkpoint_files.localize_grown(path, growths)


def _find_growths(path, graph):
  maps = graph.get_collection(key_map.MAPS)
  if not maps:
    return []
  shapes, growths = checkpoints.read_shapes(path), {}
  for found in maps:
    table = shard_slices.find_place(found.rows)[0].rpartition('/')[0]
    [size] = shapes.get(f'{table}/keys', [0])
    before, after = size // new_rows.NUM_BUCKETS, found.new_rows.rows_in_bucket
    if before > after:
      raise cli.RunError(
        f'checkpoint {path} has {size:,} rows in the table {table!r}, and the '
        f'model {found.new_rows.num_positions:,}: a capacity may become '
        'larger, not smaller; give NewRows the capacity it had, or another '
        '--logdir'
      )
    if 0 < before < after:
      growths[table] = grown_copy.Growth(
        table, new_rows.NUM_BUCKETS, before, after, new_rows.CLEAN_ROW
      )
  return list(growths.values())
