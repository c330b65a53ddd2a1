"""Each task compares itself with the others before it works, and again later.

From the heartbeat table (heartbeats.py) a task finds out that its hosts or
flags differ from the others', or that another process is the same task.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from distmnist.cluster import errors
from distmnist.common import cli, console
from distmnist.common.names import CHIEF
from distmnist.lifecycle import consistency

if TYPE_CHECKING:
  from distmnist.cluster import cluster as cluster_lib
  from distmnist.cluster import stop_request
  from distmnist.lifecycle import heartbeats


class CheckIn:
  """Reads the rows of other tasks, and compares them with this task."""

  def __init__(
    self,
    cluster: cluster_lib.Cluster,
    beats: heartbeats.Heartbeats,
    settings: dict[str, Any],
    stop: stop_request.StopRequest,
  ) -> None:
    """
    Args:
      settings: {name: value}, what all tasks must agree on.
      stop: ends a wait.
    """
    self._cluster = cluster
    self._beats = beats
    self._settings = settings
    self._stop = stop
    self._others = cluster.other_addresses('ps', 'worker')
    # Name: (row, settings).
    self._rows: dict[str, heartbeats.RowAndSettings | None] = {}

  def find_life(self, name: str) -> str | None:
    """Returns the `life` of the task called `name`, or None."""
    row, _ = self._rows.get(name) or ({}, {})
    return row.get('life')

  def run(self) -> None:
    """Writes this task's row, and waits for the rows it needs to begin.

    Raises:
      cli.PassingError: no task of ours answers where the table should be, or
        a ps does not check in.
      cli.RunError: this task does not fit the others.
    """
    beats = self._beats
    limit = self._cluster.start_timeout_secs
    deadline = time.monotonic() + limit
    wait = console.Wait(limit)
    own = self._cluster.name
    if beats.ask(lambda: beats.read_row(own), deadline):
      self._refuse_duplicate(deadline)
    while True:
      # On every turn: a ps that has restarted has an empty table.
      beats.ask(self._exchange_rows, deadline)
      missing = {
        name: self._others[name]
        for name in self._find_needed()
        if not self._rows.get(name)
      }
      if not missing:
        break
      names = errors.list_tasks(missing)
      if wait.is_over(f'for a sign of {names}'):
        raise cli.PassingError(
          f'no sign of {names} within {limit:g} s, though the port answers: '
          'another program may have it, or the tasks were given different '
          '--ps_hosts'
        )
      self._stop.wait(wait.choose_pause())
    self._compare(deadline)

  def compare_with_chief(self) -> None:
    """To be called by a worker once it has seen that the chief is up.

    Raises:
      cli.RunError: the chief was started differently.
    """
    deadline = time.monotonic() + self._cluster.start_timeout_secs
    self._beats.ask(self._read_chief, deadline)
    self._compare(deadline)

  def look_for_chief(self) -> None:
    """Like compare_with_chief, for a chief that may start after this task.

    Raises:
      tf.errors.OpError: the table does not answer right now.
    """
    if CHIEF in self._find_compared():
      self._read_chief()
      # A table that is slow for a second is no reason to give up.
      self._compare(time.monotonic() + self._cluster.start_timeout_secs)

  def _exchange_rows(self) -> None:
    self._beats.claim()
    for name in self._find_compared():
      self._rows[name] = self._beats.read_row(name)

  def _read_chief(self) -> None:
    self._rows[CHIEF] = self._beats.read_row(CHIEF)

  def _find_needed(self) -> list[str]:
    """Returns the names of the tasks that this one cannot begin without."""
    if self._cluster.job_name == 'ps':
      return []
    names = self._cluster.addresses('ps') or [CHIEF]
    return [name for name in names if name in self._others]

  def _find_compared(self) -> list[str]:
    """Returns the names of the tasks that this one must match, if up."""
    names = [*self._cluster.addresses('ps')]
    if self._cluster.job_name == 'worker':
      names.append(CHIEF)
    return [name for name in names if name in self._others]

  def _refuse_duplicate(self, deadline: float) -> None:
    """Checks that no living process has a row under our name.

    Raises:
      cli.RunError: one has.
    """
    name, beats = self._cluster.name, self._beats
    row, _ = beats.ask(lambda: beats.read_row(name), deadline) or ({}, {})
    # In the same place it would hold the port, and we could not serve.
    if row.get('place') != beats.place and beats.wait_for_beat(name, deadline):
      raise cli.RunError(
        f'{name} is already running, as process {row["pid"]} of host '
        f'{row["host"]}: give this one another --task_index, or stop that one'
      )

  def _compare(self, deadline: float) -> None:
    """Compares our settings with those of living tasks.

    Every task compares what it shares with each ps: the hosts, the program and
    its versions. A worker also compares all of its settings with the chief's.

    Raises:
      cli.RunError: names what differs and both values.
    """
    for name in self._find_compared():
      _, settings = self._rows.get(name) or ({}, self._settings)
      different = consistency.find_differences(
        self._settings, settings, is_ps=name.startswith('ps')
      )
      if different and self._beats.wait_for_beat(name, deadline):
        raise cli.RunError(
          f'{name} at {self._others.get(name, "another host")} was started '
          f'differently: {", ".join(different)}; give all tasks the same'
        )
