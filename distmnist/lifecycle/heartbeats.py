"""This task's heartbeat, and when the others' heartbeats last came.

Each task of a cluster has a row in the heartbeat table (cluster/
heartbeat_table.py), and beats there every second or two to show that it is
alive: a suspended task still answers on its port, but no longer beats. A task
that finds another process's beat under its own name was replaced while it stood
still; it ends at once, and saves nothing.
"""

from __future__ import annotations

import logging
import math
import os
import pathlib
import socket
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import tensorflow.compat.v1 as tf

from distmnist.cluster import errors, heartbeat_table, polling, stop_request
from distmnist.common import cli, console
from distmnist.lifecycle import table_calls

if TYPE_CHECKING:
  from distmnist.cluster import cluster as cluster_lib
  from distmnist.lifecycle import stalls as stalls_lib

_log = logging.getLogger(__name__)
_Answer = TypeVar('_Answer')
RowAndSettings = tuple[dict[str, Any], dict[str, Any]]

# Seconds between two beats of a task, in a small cluster and in a large one.
_BEAT_SECS = 1.0, 2.0
# Seconds between two reads of all beats, for each task of the cluster: the size
# of a read grows with the number of tasks.
_READ_SECS_PER_TASK = 1 / 12
# A task without a beat for this long is not just slow, even on a busy machine.
SILENT_SECS = 5.0
# A living task is seen to beat within the time for this many beats. We count
# looks, not seconds, which also pass while we are not given the CPU.
_NUM_BEATS_TO_SEE = 3
_BEAT_LOOK_SECS = 0.2


def find_place() -> str:
  """Returns what two processes have in common if they cannot share a port.

  The host name will not do: clones and containers share it.
  """
  try:
    boot = pathlib.Path('/proc/sys/kernel/random/boot_id').read_text().strip()
    return f'{boot} {os.stat("/proc/self/ns/net").st_ino}'
  except OSError:
    return socket.gethostname()


class Heartbeats:
  """This task's row and beats in the heartbeat table, and those it has read.

  Attributes:
    place: see find_place.
    is_closed: ends the beats.
  """

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
      server: None for one process, which has no table: there is nobody to
        check in with, and no method that asks the table may be called.
      settings: {name: value}, what all tasks must agree on.
      stalls: its num_steps goes out with each beat.
      stop: ends a task that was replaced.
    """
    self._cluster = cluster
    self._settings = settings
    self._stalls = stalls
    self._stop = stop
    self._life = int.from_bytes(os.urandom(8), 'big') >> 1
    self._num_beats = 0
    self.place = find_place()
    self._row = _describe_process(self.life, self.place)
    self._beats: dict[str, heartbeat_table.Beat] = {}
    # Name: when we saw its beat come or change.
    self._last_change: dict[str, float] = {}
    self._have_beaten: set[str] = set()  # Names whose beat we saw change.
    self._busy: dict[str, str] = {}  # What the others say.
    self._told = ''  # What we have said.
    num_tasks = cluster.num_ps + cluster.num_workers
    self._beat_secs = polling.compute_interval_secs(num_tasks, *_BEAT_SECS)
    self._secs_to_see = _NUM_BEATS_TO_SEE * self._beat_secs
    self._read_secs = max(self._beat_secs, num_tasks * _READ_SECS_PER_TASK)
    self._last_answer = self._last_read = self._next_look = time.monotonic()
    self.is_closed = threading.Event()
    self._has_table = server is not None
    if server:
      self._table = heartbeat_table.HeartbeatTable(cluster, server)
      self._calls = table_calls.TableCalls(cluster, self.is_closed, stop)

  @property
  def life(self) -> str:
    """Different in each process."""
    return f'{self._life:016x}'

  @property
  def can_begin(self) -> bool:
    """Whether there is a table, and this task has not begun to beat there."""
    return self._has_table and not self._num_beats

  def claim(self) -> None:
    """Writes this task's row and first beat, over any that are there."""
    self._num_beats = 1
    self._table.write(self._row, self._settings)
    self._table.claim(self._make_beat())
    self._table.write_busy('')  # Not what an earlier life was doing.

  def _make_beat(self) -> heartbeat_table.Beat:
    return heartbeat_table.Beat(
      self._life, self._num_beats, self._stalls.num_steps
    )

  def read_row(self, name: str) -> RowAndSettings | None:
    """Returns (row, settings) of the task called `name`, or None.

    Raises:
      tf.errors.OpError: see heartbeat_table.HeartbeatTable.read; `ask`
        handles it.
    """
    return self._table.read(name)

  def read_beats(self) -> None:
    """Reads the beats of all tasks; ended tasks' beats stay in the table."""
    beats = self._table.read_beats()
    self._last_answer = self._last_read = now = time.monotonic()
    for name, beat in beats.items():
      old = self._beats.get(name)
      if old is None:
        self._last_change[name] = now
      elif old != beat:
        self._last_change[name] = now
        self._have_beaten.add(name)
    self._beats = beats
    self._busy = self._table.read_busy()

  def find_busy(self) -> dict[str, str]:
    """Returns {name: what it takes long over} of other tasks that beat."""
    return {
      name: text
      for name, text in self._busy.items()
      if name != self._cluster.name
      and (self.secs_silent(name) or 0) <= SILENT_SECS
    }

  def secs_silent(self, name: str) -> float | None:
    """Returns for how many seconds task `name` had not sent a beat.

    As of the last read; None if that is unknown: no beat yet, or the table was
    not read recently.
    """
    age = time.monotonic() - self._last_read
    if name not in self._last_change or age > self._read_secs + SILENT_SECS:
      return None
    return self._last_read - self._last_change[name]

  def secs_without_answer(self) -> float:
    """Returns for how many seconds the table has not answered."""
    return time.monotonic() - self._last_answer

  def may_be_replaced(self) -> bool:
    """Whether another process may have taken this task's place.

    One that finds our row in the table does so if it sees no beat for as long.
    """
    is_beating = self._num_beats > 0 and not self.is_closed.is_set()
    return is_beating and self.secs_without_answer() > self._secs_to_see

  def wait_for_beat(self, name: str, deadline: float) -> bool:
    """Returns whether task `name` is seen to beat within a few seconds."""
    wait = console.Wait(math.inf)  # The looks are counted.
    for _ in range(round(self._secs_to_see / _BEAT_LOOK_SECS)):
      if name in self._have_beaten:
        break
      wait.is_over(f'to see whether {name} is alive')
      self._stop.wait(_BEAT_LOOK_SECS)
      self.ask(self.read_beats, deadline)
    return name in self._have_beaten

  def ask(self, ask: Callable[[], _Answer], deadline: float) -> _Answer:
    """Returns what `ask()` returns; see TableCalls.call."""
    answer = self._calls.call(ask, deadline)
    self._last_answer = time.monotonic()
    return answer

  def keep_beating(self, look: Callable[[], None]) -> None:
    """Beats until `is_closed` is set; for a thread of its own.

    Args:
      look: called between two beats, less often in a larger cluster.
    """
    while not self.is_closed.wait(self._beat_secs):
      try:
        self._beat_once()
        self._tell_busy()
        if self._last_answer >= self._next_look:
          self._next_look = self._last_answer + self._read_secs
          look()
      except tf.errors.OpError:
        pass  # The training meets the same error, and recovers or ends.
      except (cli.RunError, stop_request.StoppedError) as error:
        if isinstance(error, cli.RunError):
          self._stop.give_up(error)
        return
      except Exception as error:  # A task that does not beat is taken for dead.
        _log.info(f'a beat failed, and the next is tried: {error!r}')

  def _tell_busy(self) -> None:
    """Tells the others what this task has begun or ended to take long over."""
    text = self._stalls.describe_own()
    if text != self._told:
      self._table.write_busy(text)
      self._told = text

  def _beat_once(self) -> None:
    self._num_beats += 1
    before = self._table.beat(self._make_beat())
    self._last_answer = time.monotonic()
    if before.life == -1:  # The table is new: its task has restarted.
      self._table.write(self._row, self._settings)
      self._told = ''
    elif before.life != self._life and not self.is_closed.is_set():
      self._stop.end_at_once(errors.make_replaced(self._cluster.name))


def _describe_process(life: str, place: str) -> dict[str, Any]:
  """Returns the row of this process in the table."""
  return {
    'life': life,
    'host': socket.gethostname(),
    'place': place,
    'pid': os.getpid(),
  }
