"""Measures over the network how far the clocks of other tasks are ahead.

As in Cristian (1989): a clock is read between two readings of ours, and taken
to have been read in the middle; of several tries the quickest counts.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import tensorflow.compat.v1 as tf

if TYPE_CHECKING:
  from distmnist.cluster import cluster as cluster_lib

_NUM_TRIES = 5
_TIMEOUT_MS = 2000


def measure(
  cluster: cluster_lib.Cluster, server: tf.train.Server | None
) -> dict[str, float]:
  """Returns {task: seconds}, how far its clock is ahead of the coordinator's.

  Covers all ps and this task; {} for one process, or if a task is gone.

  Args:
    server: of this task; None for one process.
  """
  if server is None:
    return {}
  places = {
    name: f'/job:ps/task:{index}'
    for index, name in enumerate(cluster.addresses('ps'))
  }
  places.setdefault(cluster.coordinator, cluster.coordinator_device)
  with tf.Graph().as_default() as graph:
    stamps = {}
    for name, place in places.items():
      with tf.device(f'{place}/device:CPU:0'):
        stamps[name] = tf.timestamp()
  filters = sorted({*places.values(), cluster.task_device})
  config = tf.ConfigProto(device_filters=filters)
  options = tf.RunOptions(timeout_in_ms=_TIMEOUT_MS)
  ahead = {cluster.name: 0.0}
  with (
    contextlib.suppress(tf.errors.OpError),
    tf.Session(server.target, graph=graph, config=config) as session,
  ):
    for name in places.keys() - {cluster.name}:
      stamp = stamps[name]
      ahead[name] = _ask(lambda x=stamp: session.run(x, options=options))
    base = ahead[cluster.coordinator]
    return {name: secs - base for name, secs in ahead.items()}
  return {}


def _ask(read: Callable[[], float]) -> float:
  """Returns how far the clock that `read()` reads is ahead, in seconds."""
  tries = []
  for _ in range(_NUM_TRIES):
    before = time.time()
    there = float(read())
    after = time.time()
    tries.append((after - before, there - (before + after) / 2))
  return min(tries)[1]
