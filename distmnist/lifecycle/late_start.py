"""A task that starts once its run is at its last step, and the ps have left.

It would wait for them in vain. A worker has no work left; the chief may have
been killed before it had evaluated and reported the run, and can do so alone.
Without a ps it is the chief that has left, or all workers but the chief.
"""

from __future__ import annotations

import contextlib
import os
import time
import types
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from distmnist.cluster import probing, stop_request
from distmnist.common import cli
from distmnist.common.names import ATTEMPT, CHIEF

if TYPE_CHECKING:
  from distmnist.cluster import cluster as cluster_lib
  from distmnist.logdir import restart as restart_lib

# If the whole cluster is started once more, its ps come within this time.
_PATIENCE_SECS = 5.0
_LOOK_SECS = 0.2


def has_ended(
  cluster: cluster_lib.Cluster,
  restart: restart_lib.Restart,
  pause: Callable[[float], object],
) -> bool:
  """Whether the run is at its last step, and those it needs have left.

  It takes some seconds to be sure, except for a worker that its launcher has
  started again beside ps: that one looks once.

  Args:
    cluster: of a worker.
    pause: called with seconds, between two looks; may raise to end them.
  """
  needed = cluster.addresses('ps') or cluster.other_addresses('worker')
  if not cluster.num_ps and not cluster.is_chief:
    needed = {CHIEF: needed[CHIEF]}  # It is the last to leave.
  if not needed or not restart.looks_finished():
    return False
  is_again = ATTEMPT in os.environ and not cluster.is_chief
  looks_once = is_again and cluster.num_ps
  deadline = time.monotonic() + (0.0 if looks_once else _PATIENCE_SECS)
  while len(probing.find_silent(needed)) == len(needed):
    if time.monotonic() >= deadline:
      return restart.is_finished()
    pause(_LOOK_SECS)
  return False


@contextlib.contextmanager
def noticed(
  cluster: cluster_lib.Cluster,
  restart: restart_lib.Restart,
  pause: Callable[[float], object],
) -> Iterator[types.SimpleNamespace]:
  """Notices that a task came as the last ps left; it is no error.

  Yields:
    An object with `is_late`, a bool that is set at the end of the block.
  """
  found = types.SimpleNamespace(is_late=False)
  try:
    yield found
  except cli.RunError:
    with contextlib.suppress(stop_request.StoppedError):
      found.is_late = has_ended(cluster, restart, pause)
    if not found.is_late:
      raise
