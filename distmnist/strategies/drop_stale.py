"""Drop-stale gradients: a gradient that is too old is not applied at all.

After tf.contrib.opt's DropStaleGradientOptimizer (TensorFlow 1). Worker i:

  pull x~ at clock c_i;  g = g^i(x~);  s = c - c_i
  if s <= max_staleness:  x~ <- Opt(x~, g);  c += 1
  else:                   g is dropped, and counted

x~ is the center, c its clock (global_step, the updates that were applied), s
the staleness: the updates by others between the pull and the push. s is read
and judged under one lock. A dropped gradient is wasted work, but its worker
gets a fresh copy.

The center and slots live on the ps, the pulled copy on the worker. A worker
waits for the lock only while another's update is applied. If a worker dies,
only its speed is lost; the lock, if it holds it, is released.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from distmnist.exchange import locked_center
from distmnist.transport import strategy

if TYPE_CHECKING:
  from distmnist.cluster.cluster import Cluster


def make(cluster: Cluster) -> DropStale:
  return DropStale(cluster, strategy.max_staleness_from_flags(3))


class DropStale(locked_center.GradientRule):
  """Applies gradients as async_sgd does, up to a maximum staleness."""

  name = 'drop_stale'
