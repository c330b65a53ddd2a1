"""Ringmaster ASGD: a gradient R or more updates old is neither sent nor used.

Maranjyan, Tyurin, Richtarik 2025, arXiv 2501.16168, algorithm 4. Worker i:

  pull x~ at clock c_i;  g = g^i(x~);  s = c - c_i
  if s < R:  push g;  x~ <- Opt(x~, g);  c += 1
  else:      g is given up, and counted

x~ is the center, c its clock (global_step, the updates that were applied), s
the staleness: the updates by others between the pull and the push. R is
max_staleness + 1. The theorem's R = max(1, ceil(sigma^2 / eps)), with a rate of
the order of 1 / (R L), needs no speed of any worker, but the variance sigma^2
of a gradient, the smoothness L of the loss and the squared norm eps of the
gradient that is aimed at. Where none of it is known, R = 2 n here, for n
workers: of workers of equal speed s is n - 1 on average, and what is given up
is of those that take about twice as long as a usual one, or longer.

The worker asks for c before it sends g: 8 bytes in place of the whole of a
gradient that nobody will use. What comes too late after that is dropped as s is
read and judged again, under one lock. Rows of tables, and what is so small that
it travels with them, are sent in any case. The paper's algorithm 5 also ends
the computation of such a gradient midway; a step here is one session.run, which
computes it to the end.

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


def make(cluster: Cluster) -> Ringmaster:
  default = 2 * cluster.num_workers - 1
  return Ringmaster(cluster, strategy.max_staleness_from_flags(default))


class Ringmaster(locked_center.GradientRule):
  """Applies gradients as async_sgd does, those of less than R updates ago."""

  name = 'ringmaster'
  asks_first = True
