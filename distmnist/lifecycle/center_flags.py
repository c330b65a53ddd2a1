"""Whether the center on the ps is whole, and which training it belongs to.

The chief leaves a note on each ps once the whole center has its values. A
restarted ps has none: so no worker trains on what the other ps still hold of
the lost center, and no new chief takes that for whole. A chief of another
training also finds out that this center is not its own. The note is a table,
and so needs no initialisation and is in no checkpoint.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import tensorflow.compat.v1 as tf

from distmnist.common import cli

if TYPE_CHECKING:
  from distmnist.cluster import cluster as cluster_lib


class CenterFlags:
  """The notes on all ps, in the default graph."""

  def __init__(self, cluster: cluster_lib.Cluster) -> None:
    self._run = tf.placeholder(tf.string, [1], 'run')
    self._sizes: list[tf.Tensor] = []
    self._raises: list[tf.Operation] = []
    self._found: list[tf.Tensor] = []
    for i in range(cluster.num_ps):
      with tf.device(f'/job:ps/task:{i}/device:CPU:0'):
        table = tf.raw_ops.MutableHashTableV2(
          key_dtype=tf.int64, value_dtype=tf.string, shared_name='center_of_run'
        )
        key = tf.constant([0], tf.int64)
        self._sizes.append(tf.raw_ops.LookupTableSizeV2(table_handle=table))
        self._raises.append(
          tf.raw_ops.LookupTableInsertV2(
            table_handle=table, keys=key, values=self._run
          )
        )
        self._found.append(
          tf.raw_ops.LookupTableFindV2(
            table_handle=table, keys=key, default_value=tf.constant('')
          )
        )

  def build_missing(self) -> tf.Tensor:
    """Returns a string tensor [n] that names each ps without a note."""
    names = [f'center_is_whole on ps {i}' for i in range(len(self._sizes))]
    return tf.boolean_mask(names, tf.equal(tf.stack(self._sizes), 0))

  def raise_all(self, session: tf.Session, run: str) -> None:
    """Notes on each ps that the center is whole, and of which training.

    `run` is empty where there is no log directory to identify a training.
    """
    session.run(self._raises, {self._run: [run]})

  def check_run(self, session: tf.Session, run: str) -> None:
    """Checks that the whole center may be taken over.

    Raises:
      cli.RunError: it belongs to another training.
    """
    found = {values[0].decode() for values in session.run(self._found)}
    if found != {run}:
      raise cli.RunError(
        'the ps still hold the center of another training, with another '
        '--logdir or from before --resume: let them end, then start all tasks'
      )
