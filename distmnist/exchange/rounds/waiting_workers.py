"""Which workers wait at this ps for the end of a round, seen from the ps."""

import contextlib

import tensorflow.compat.v1 as tf

from distmnist.exchange.rounds import token_table

_TIMEOUT_MS = 2000


class WaitingWorkers:
  """Reads this ps's table of tokens, in its own graph and session."""

  def __init__(self, cluster, server):
    """
    Args:
      cluster: cluster.Cluster of a ps.
      server: tf.train.Server of this ps.
    """
    with tf.Graph().as_default() as graph:
      table = token_table.TokenTable(cluster, cluster.cpu_device)
      self._tokens = table.read()
    # The other tasks need not be up.
    config = tf.ConfigProto(device_filters=[cluster.task_device])
    self._session = tf.Session(server.target, graph=graph, config=config)

  def find(self):
    """Returns their names, a list of str; empty if no rule has rounds."""
    options = tf.RunOptions(timeout_in_ms=_TIMEOUT_MS)
    try:
      tokens = self._session.run(self._tokens, options=options)
    except tf.errors.OpError:
      return []
    return [f'worker {i}' for i, token in enumerate(tokens) if token == 0]

  def close(self):
    with contextlib.suppress(tf.errors.OpError):
      self._session.close()
