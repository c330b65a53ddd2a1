"""A function that builds ops, called with arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow.compat.v1 as tf
from absl import flags

from distmnist.cluster import server


def make_session(graph: tf.Graph) -> tf.Session:
  """Returns a session of `graph` on the CPU: a GPU may be in use.

  Lookup tables of the graph are filled.

  The first session of a process determines its threads, including those of the
  server that is yet to come.
  """
  config = tf.ConfigProto(device_count={'GPU': 0})
  if flags.FLAGS.is_parsed():
    config = server.make_server_config()
  with graph.as_default():
    filled = tf.tables_initializer()
  session = tf.Session(graph=graph, config=config)
  session.run(filled)
  return session


class GraphFunction:
  """A function in a classic graph; it may be called from several threads.

  It runs on the CPU, in a session of its own.
  """

  def __init__(
    self,
    function: Callable[[tf.Tensor], Any],
    dtype: tf.DType,
    *shape: int | None,
  ) -> None:
    """Builds the graph.

    Args:
      function: makes a nest of tensors.
      dtype: tf.DType of its argument.
      *shape: of its argument.
    """
    with tf.Graph().as_default() as graph:
      self._fed = tf.placeholder(dtype, shape)
      self._fetched = function(self._fed)
    self._session = make_session(graph)

  def __call__(self, values: Any) -> Any:
    """Returns the nest of arrays that the function makes of an array.

    Raises:
      tf.errors.OpError: an op fails.
    """
    return self._session.run(self._fetched, {self._fed: values})
