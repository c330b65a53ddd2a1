"""Which workers are certainly gone, so that others may take over their work.

A worker whose process has ended refuses connections and no longer beats: after
several such looks in a row it is gone, though it may come back. A suspended
worker still accepts connections; it counts as gone after a longer silence, and
finds out when it wakes (batch_hook.BatchHook).
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from distmnist.cluster import probing
from distmnist.lifecycle import heartbeats

if TYPE_CHECKING:
  from distmnist.cluster import cluster as cluster_lib
  from distmnist.lifecycle import watchdog as watchdog_lib

_LOOK_SECS = 0.5
_NUM_LOOKS = 4


class LostWorkers:
  """What one worker knows of the others."""

  def __init__(
    self,
    cluster: cluster_lib.Cluster,
    watchdog: watchdog_lib.Watchdog,
    warn_secs: float,
  ) -> None:
    """
    Args:
      warn_secs: that of the task's stalls; after a silence twice as long a
        worker is gone even if it accepts connections.
    """
    self._addresses = cluster.other_addresses('worker')
    self._indices = {f'worker {i}': i for i in range(cluster.num_workers)}
    self._watchdog, self._warn_secs = watchdog, warn_secs
    self._num_looks = dict.fromkeys(self._addresses, 0)
    self._next_look = 0.0
    self._found: list[int] = []

  def find(self) -> list[int]:
    """Returns the indices of the workers that are gone.

    To be called repeatedly during a wait; it looks twice a second.
    """
    now = time.monotonic()
    if now < self._next_look:
      return self._found
    self._next_look = now + _LOOK_SECS
    secs = {name: self._watchdog.secs_silent(name) for name in self._addresses}
    silent = {
      name: self._addresses[name]
      for name, s in secs.items()
      if s is not None and s > heartbeats.SILENT_SECS
    }
    refusing = probing.find_silent(silent) if silent else {}
    for name in self._num_looks:
      self._num_looks[name] = (
        self._num_looks[name] + 1 if name in refusing else 0
      )
    limit_secs = max(2 * self._warn_secs, 2 * heartbeats.SILENT_SECS)
    self._found = [
      self._indices[name]
      for name, looks in self._num_looks.items()
      if looks >= _NUM_LOOKS or (secs[name] or 0) > limit_secs
    ]
    return self._found
