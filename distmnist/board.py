"""A board on one task, where every task of the cluster has a row.

Unlike a mailbox it keeps what was last written, for all to read. It is a hash
table with a shared name: it needs no initialisation, is in no checkpoint, and
is empty again when its task was started anew. Graph and session are the
board's own; a row is JSON.
"""

import contextlib
import json

import tensorflow.compat.v1 as tf


class Board:
  """This task's way to the board."""

  def __init__(self, cluster, server):
    """
    Args:
      cluster: cluster.Cluster of this task; the board is on its ps 0, or on
        worker 0 where there is no ps.
      server: tf.train.Server of this task.
    """
    place = cluster.meeting_place
    # Rows by number: -1, -2, ... for the ps, 0, 1, ... for the workers.
    index = cluster.task_index
    self._key = index if cluster.job_name == 'worker' else -1 - index
    self._target = server.target
    filters = sorted({place, cluster.task_device})
    self._config = tf.ConfigProto(device_filters=filters)
    with tf.Graph().as_default() as self._graph:
      with tf.device(cluster.cpu_device):
        self._text = tf.placeholder(tf.string, ())
      with tf.device(f'{place}/device:CPU:0'):
        table = tf.raw_ops.MutableHashTableV2(
          key_dtype=tf.int64, value_dtype=tf.string, shared_name='board'
        )
        self._read = self._build_read(table)
        put = tf.raw_ops.LookupTableInsertV2(
          table_handle=table,
          keys=tf.constant(self._key, tf.int64),
          values=self._text,
        )
        with tf.control_dependencies([put]):
          self._read_after = self._build_read(table)
    self._session = None

  def _build_read(self, table):
    return tf.raw_ops.LookupTableExportV2(
      table_handle=table, Tkeys=tf.int64, Tvalues=tf.string
    )

  def write(self, row):
    """Puts this task's `row`, a dict; returns all rows, as `read` does."""
    return self._run(self._read_after, {self._text: json.dumps(row)})

  def read(self):
    """Returns {task name: its row, a dict}.

    Waits for as long as the board's task is silent.

    Raises:
      tf.errors.OpError: the board's task is gone, or is no task of ours.
    """
    return self._run(self._read, None)

  def _run(self, fetches, feed):
    if self._session is None:
      self._session = tf.Session(
        self._target, graph=self._graph, config=self._config
      )
    try:
      keys, texts = self._session.run(fetches, feed)
    except tf.errors.OpError:
      # A task that was started anew does not know the old session.
      self.close()
      raise
    return {
      f'worker {key}' if key >= 0 else f'ps {-1 - key}': json.loads(text)
      for key, text in zip(keys, texts, strict=True)
    }

  def close(self):
    if self._session is not None:
      with contextlib.suppress(tf.errors.OpError):
        self._session.close()
      self._session = None
