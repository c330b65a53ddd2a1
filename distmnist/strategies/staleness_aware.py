"""Staleness-aware asynchronous SGD: a stale gradient takes a smaller step.

Zhang, Gupta, Lian, Liu 2015, arXiv 1511.05950, section 3.2. Worker i:

  pull x~ at clock c_i;  g = g^i(x~)
  s = c - c_i;  x~ <- Opt(x~, g) with the rate eta / max(1, s);  c += 1

x~ is the center, c its clock (global_step), s the staleness: the updates by
others between the pull and the push. s is read and used under one lock, so it
is exact.

The center and slots live on the ps, the pulled copy on the worker. A worker
waits for the lock only while another's update is applied. If a worker dies,
only its speed is lost; the lock, if it holds it, is released.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import tensorflow.compat.v1 as tf

from distmnist.exchange import locked_center

if TYPE_CHECKING:
  from distmnist.cluster.cluster import Cluster


def make(cluster: Cluster) -> StalenessAware:
  return StalenessAware(cluster)


class StalenessAware(locked_center.GradientRule):
  """Divides the rate of a push by its staleness."""

  name = 'staleness_aware'

  def compute_rate_factor(self, staleness: tf.Tensor) -> tf.Tensor:
    return 1 / tf.cast(tf.maximum(staleness, 1), tf.float32)
