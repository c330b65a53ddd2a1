"""A function that builds ops, called with arrays."""

import tensorflow.compat.v1 as tf
from absl import flags

from distmnist.cluster import server


def make_session(graph):
  """Returns a tf.Session of `graph` on the CPU: a GPU may be in use.

  The first session of a process decides on its threads, those of the server
  that is yet to come as well.
  """
  config = tf.ConfigProto(device_count={'GPU': 0})
  if flags.FLAGS.is_parsed():
    config = server.make_server_config()
  return tf.Session(graph=graph, config=config)


class GraphFunction:
  """A function of a classic graph; it may be called from several threads.

  It runs on the CPU, in a session of its own.
  """

  def __init__(self, function, dtype, *shape):
    """Builds the graph.

    Args:
      function: callable(tensor) -> nest of tensors.
      dtype: tf.DType of what it takes.
      *shape: int or None, the shape of it.
    """
    with tf.Graph().as_default() as graph:
      self._fed = tf.placeholder(dtype, shape)
      self._fetched = function(self._fed)
    self._session = make_session(graph)

  def __call__(self, values):
    """Returns the nest of arrays of an array.

    Raises:
      tf.errors.OpError: an op fails.
    """
    return self._session.run(self._fetched, {self._fed: values})
