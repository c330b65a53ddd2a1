"""The queues of a ring, which are new in each generation (meeting.py).

TensorFlow finds a queue by its name, on the server that has it. A graph is
built once, and its queues get names of the generation before each session: what
another session of this worker, or of another, has left in its queues or still
waits for there has nothing to do with this one's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import tensorflow.compat.v1 as tf

from distmnist import tf_internals
from distmnist.exchange.ring import all_reduce

if TYPE_CHECKING:
  from distmnist.cluster.cluster import Cluster


class Queues:
  """All queues of a ring in the default graph, which is complete."""

  def __init__(self, cluster: Cluster) -> None:
    self._cluster = cluster
    self._names = {
      op: op.get_attr('shared_name')
      for op in tf.get_default_graph().get_operations()
      if op.type == 'FIFOQueueV2'
      and op.get_attr('shared_name').startswith(all_reduce.PREFIX.encode())
    }

  def begin(self, generation: str) -> None:
    """Names the queues of the sessions to come; no other has begun."""
    for op, name in self._names.items():
      value = tf.AttrValue(s=_name(name, generation))
      tf_internals.set_attr(op, 'shared_name', value)

  def drop(self, generation: str, server: tf.train.Server) -> None:
    """Frees what the queues of a generation hold here: all have left it.

    Args:
      server: tf.train.Server of this worker.
    """
    own = self._cluster.cpu_device
    with tf.Graph().as_default() as graph, tf.device(own):
      dropped = [
        tf.raw_ops.DestroyResourceOp(
          resource=tf.raw_ops.FIFOQueueV2(
            component_types=op.get_attr('component_types'),
            shapes=op.get_attr('shapes'),
            capacity=op.get_attr('capacity'),
            shared_name=_name(name, generation).decode(),
          )
        )
        for op, name in self._names.items()
        if op.device == own
      ]
    config = tf.ConfigProto(device_filters=[self._cluster.task_device])
    with tf.Session(server.target, graph, config) as session:
      session.run(dropped)


def _name(name: bytes, generation: str) -> bytes:
  return name + b'/' + generation.encode()
