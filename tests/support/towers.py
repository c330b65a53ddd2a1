"""Several towers of a worker without a GPU: logical devices of the CPU."""

import dataclasses

import numpy as np
import tensorflow.compat.v1 as tf

from distmnist.cluster import cluster

NUM_TOWERS, PART, NUM_STEPS = 4, 6, 5
RNG = np.random.default_rng(0)
IMAGES = RNG.random((NUM_STEPS, NUM_TOWERS * PART, 8, 8, 1), np.float32)
LABELS = RNG.integers(0, 3, IMAGES.shape[:2]).astype(np.int32)
CONFIG = tf.ConfigProto(device_count={'CPU': NUM_TOWERS})


class Towers(cluster.Cluster):
  """Stands for a worker with GPUs: its towers are on CPU:0 .. CPU:3."""

  @property
  def tower_devices(self):
    return [f'{self.task_device}/device:CPU:{i}' for i in range(NUM_TOWERS)]


def make_member(kind, hosts=((), ())):
  index = 0 if hosts[1] else None
  member = cluster.make_cluster(*hosts, 'worker' if hosts[1] else None, index)
  return kind(**dataclasses.asdict(member))
