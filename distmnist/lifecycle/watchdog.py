"""Watches the other tasks: that they match this one, and are alive.

Before it works, a task checks in with the others (check_in.py). Later, when
something does not end, their heartbeats (heartbeats.py) tell it which task is
silent: a task that was killed or cut off does not answer, one that is suspended
answers but no longer beats. So no task waits in silence, and none works apart
from the others.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from distmnist.cluster import errors, probing
from distmnist.lifecycle import check_in, consistency, heartbeats
from distmnist.lifecycle import stalls as stalls_lib

if TYPE_CHECKING:
  import tensorflow.compat.v1 as tf

  from distmnist.cluster import cluster as cluster_lib
  from distmnist.cluster import stop_request


def from_flags(
  cluster: cluster_lib.Cluster,
  server: tf.train.Server | None,
  stalls: stalls_lib.Stalls,
  stop: stop_request.StopRequest,
) -> Watchdog:
  """Returns the watchdog of this task, which has not checked in yet."""
  settings = consistency.settings_from_flags(cluster)
  return Watchdog(cluster, server, settings, stalls, stop)


class Watchdog:
  """Sends this task's heartbeats, and watches the others."""

  def __init__(
    self,
    cluster: cluster_lib.Cluster,
    server: tf.train.Server | None,
    settings: dict[str, Any],
    stalls: stalls_lib.Stalls,
    stop: stop_request.StopRequest,
  ) -> None:
    """
    Args:
      server: None for one process without others.
      settings: {name: value}, what all tasks must agree on.
      stalls: knows what this task is doing.
    """
    self._cluster = cluster
    self._others = cluster.other_addresses('ps', 'worker')
    self._stalls = stalls
    self._heartbeats = heartbeats.Heartbeats(
      cluster, server, settings, stalls, stop
    )
    self._check_in = check_in.CheckIn(cluster, self._heartbeats, settings, stop)

  @property
  def life(self) -> str:
    """Different in each process."""
    return self._heartbeats.life

  def find_life(self, name: str) -> str | None:
    """Returns the `life` of the task called `name`, or None."""
    return self._check_in.find_life(name)

  def secs_silent(self, name: str) -> float | None:
    """Returns how long task `name` has been silent; see Heartbeats."""
    return self._heartbeats.secs_silent(name)

  def is_beating(self, name: str) -> bool:
    """Whether task `name` is known to have beaten within some seconds."""
    secs = self.secs_silent(name)
    return secs is not None and secs <= heartbeats.SILENT_SECS

  def may_be_replaced(self) -> bool:
    """Whether another process may have taken our place; see Heartbeats."""
    return self._heartbeats.may_be_replaced()

  def check_in(self) -> None:
    """Meets the others at the table, waits for the ps, begins to beat.

    Does nothing when called again.

    Raises:
      cli.RunError: see CheckIn.run.
    """
    beats = self._heartbeats
    if not beats.can_begin:
      return
    self._check_in.run()
    threading.Thread(
      target=beats.keep_beating, args=(self._look,), daemon=True
    ).start()

  def compare_with_chief(self) -> None:
    """To be called by a worker once it has seen that the chief is up.

    Raises:
      cli.RunError: the chief was started differently.
    """
    self._check_in.compare_with_chief()

  def close(self) -> None:
    """Ends the beats; what this task does is still watched."""
    self._heartbeats.is_closed.set()

  def _look(self) -> None:
    has_begun = self._stalls.num_steps > 0
    if (
      self._cluster.job_name == 'ps'
      or not has_begun  # Who waits for the chief asks whether it is alive.
      or self._stalls.secs() > stalls_lib.TELL_SECS
    ):
      self._heartbeats.read_beats()
    if not has_begun:
      self._check_in.look_for_chief()

  def find_quiet(self, job_name: str) -> dict[str, str]:
    """Returns {name: how it is silent} of tasks that answer and do not beat.

    From what is known already, so nothing is asked and nothing waits.
    """
    found: dict[str, str] = {}
    if self._heartbeats.is_closed.is_set():
      return found
    for name in self._others:
      secs = self.secs_silent(name)
      if name == self._cluster.coordinator:
        secs = self._heartbeats.secs_without_answer()
      if name.startswith(job_name) and secs and secs > heartbeats.SILENT_SECS:
        found[name] = f'silent for {secs:.0f} s (suspended?)'
    return found

  def describe_silent(self, with_workers: bool) -> str:
    """Returns which ps or, if asked, which workers are silent; '' if none."""
    with_workers = with_workers or not self._cluster.num_ps
    for job_name in ('ps', 'worker') if with_workers else ('ps',):
      addresses = {
        n: a for n, a in self._others.items() if n.startswith(job_name)
      }
      found = self.find_quiet(job_name) | dict.fromkeys(
        probing.find_silent(addresses),
        'which does not answer (killed, or cut off)',
      )
      if found:
        texts = [
          f'{name} at {addresses[name]}, {found[name]}'
          for name in addresses
          if name in found
        ]
        return errors.list_some(texts)
    return ''

  def describe_busy(self) -> str:
    """Returns what other workers say that they take long over."""
    found = self._heartbeats.find_busy()
    return errors.list_some(f'{name} {found[name]}' for name in sorted(found))
