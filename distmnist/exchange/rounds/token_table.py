"""A table of which workers have a token; sync_round.py says why."""

import tensorflow.compat.v1 as tf

from distmnist.transport import ps_state


class TokenTable:
  """Which workers have a token, on the ps of the tokens: 1 has one, 0 waits.

  It needs no initialisation, and is empty again after that ps restarts.
  """

  def __init__(self, cluster, device):
    """
    Args:
      cluster: cluster.Cluster.
      device: str, where the tokens are.
    """
    self._device = device
    self._worker = cluster.task_index
    self._num_workers = cluster.num_workers
    with tf.device(device):
      self._table = ps_state.Table('round/token_table')

  def set_has_token(self, has_token):
    """Returns the op that notes whether this worker has a token."""
    with tf.device(self._device):
      return self._table.insert(self._worker, int(has_token))

  def wait_for_token(self, take, ops):
    """Returns the next token, waited for once all `ops` have run.

    Args:
      take: callable -> int64 scalar tensor, Tokens.take.
      ops: list of ops or tensors.
    """
    with tf.device(self._device):
      done = tf.group(*ops)  # One message per ps, not one per op.
    with tf.control_dependencies([done]):
      waits = self.set_has_token(False)
    with tf.control_dependencies([waits]), tf.device(self._device):
      token = take()
    with tf.control_dependencies([token]):
      has_token = self.set_has_token(True)
    with tf.control_dependencies([has_token]), tf.device(self._device):
      return tf.identity(token)

  def read(self):
    """Returns an int64 tensor [num_workers]: 1, 0, or -1 for not begun yet."""
    with tf.device(self._device):
      return self._table.find(tf.range(self._num_workers, dtype=tf.int64), -1)

  def clear(self):
    """Returns the op that forgets all workers."""
    with tf.device(self._device):
      return self._table.remove(tf.range(self._num_workers, dtype=tf.int64))
