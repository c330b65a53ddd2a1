"""The meeting of a ring's workers before each session.

Each worker has all variables, so that one which is lost takes nothing along:
the others keep theirs, and its successor gets them from one of these. For that
all must begin a session together, with the same values and with queues in which
nothing is left of an earlier one. So each puts a row on a board, a table on
worker 0:

  entry   who it is (its life, and how many meetings that has begun), the global
          step of its values (None if it has none), a fingerprint of what its
          variables are
  seen    a hash of all the entries that it has read there

Once all rows have seen what is there, all have read the same entries, and know
it. The hash is the name of a new generation: its queues have it in their names
(generations.py), so whatever an earlier session still sends or takes, even in a
process that was suspended meanwhile, is no part of it. The worker with the most
steps gives its values to those that have fewer, or none; if several have as
many, the first of them.

The board says how things stand, and no message has to arrive: a worker writes
its row again when the board has another, or none, as its task has restarted.
Who is in a session and cannot go on writes a new entry; the others find it
there (`find_changed`), also where nothing else would end their wait.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import tensorflow.compat.v1 as tf

from distmnist.cluster import deadlines, errors, polling
from distmnist.common import cli

if TYPE_CHECKING:
  from distmnist.cluster.cluster import Cluster


# For one session.run on the board, and for the closing of a session.
_TIMEOUT_MS = 5000
_CLOSE_SECS = 1.0
_LOOK_SECS = 0.02

T = TypeVar('T')
# [life, number, step, fingerprint]; and {'entry': Entry, 'seen': str}.
Entry = list[Any]
Row = dict[str, Any]


class Agreement(NamedTuple):
  """What the workers have agreed on.

  Attributes:
    generation: of no other meeting.
    entries: each worker's (life, number, step, fingerprint).
    giver: the worker whose values count.
    takers: the workers that get them.
    step: the global step of these values; None if no worker has any yet.
  """

  generation: str
  entries: Sequence[Entry]
  giver: int
  takers: list[int]
  step: int | None

  def find_new(self, before: Agreement) -> list[int]:
    """Returns the workers with another life than `before`."""
    return [
      i
      for i, (old, new) in enumerate(
        zip(before.entries, self.entries, strict=True)
      )
      if old[0] != new[0]
    ]


def agree(generation: str, entries: Sequence[Entry]) -> Agreement:
  """Returns the Agreement that follows from the entries of all workers.

  Raises:
    cli.RunError: they do not have the same variables.
  """
  if len({fingerprint for _, _, _, fingerprint in entries}) > 1:
    raise cli.RunError(
      'the workers do not have the same variables: check that all tasks have '
      'the same flags'
    )
  steps = [-1 if step is None else step for _, _, step, _ in entries]
  most = max(steps)
  giver = steps.index(most)
  if most < 0:
    return Agreement(generation, entries, 0, list(range(1, len(steps))), None)
  takers = [i for i, step in enumerate(steps) if step < most]
  return Agreement(generation, entries, giver, takers, most)


class Meeting:
  """One worker's part in all its meetings.

  Attributes:
    agreement: Agreement of the last one, or None.
  """

  def __init__(
    self, cluster: Cluster, server: tf.train.Server, fingerprint: int
  ) -> None:
    """
    Args:
      server: tf.train.Server of this worker.
      fingerprint: of its variables.
    """
    self._worker, self._num_workers = cluster.task_index, cluster.num_workers
    self._name = cluster.name
    self._board = _Board(cluster, server)
    self._fingerprint = fingerprint
    self._life = os.urandom(8).hex()
    self._number = 0
    self._has_written = False
    self._secs = polling.compute_interval_secs(cluster.num_workers, _LOOK_SECS)
    self.agreement: Agreement | None = None

  def hold(
    self,
    step: int | None,
    is_left: bool,
    look: Callable[[list[int]], None],
    pause: Callable[[float], None],
  ) -> Agreement:
    """Returns the Agreement, once all workers are here.

    Args:
      step: the global step of this worker's values; None: it has none.
      is_left: whether it has left the last generation, in which the others may
        still be. Otherwise they need not meet again for it.
      look: callable(missing), called again and again with the workers, a list
        of int, that are not here yet; what it raises ends the wait.
      pause: callable(secs).

    Raises:
      cli.LostError: another process has this worker's place.
      cli.RunError: the workers do not have the same variables.
    """
    if is_left or not self._number:
      self._number += 1
    entry = [self._life, self._number, step, self._fingerprint]
    missing = [i for i in range(self._num_workers) if i != self._worker]

    def call(
      work: Callable[[], T],
    ) -> T | None:
      """Returns what work() returns, or None; it may wait for worker 0."""
      try:
        return deadlines.call_and_look(work, lambda: look(missing))
      # RuntimeError: a session that another thread has closed.
      except (tf.errors.OpError, RuntimeError):
        look(missing)
        pause(self._secs)
        return None

    while True:
      rows = call(self._board.read)
      if rows is None:
        continue
      self._check_place(rows)
      entries = _find_entries(rows, self._num_workers)
      entries[self._worker] = entry
      row = {'entry': entry, 'seen': _hash(entries)}
      missing = [
        i
        for i in range(self._num_workers)
        if i != self._worker and rows.get(i, {}).get('seen') != row['seen']
      ]
      if rows.get(self._worker) != row:
        is_written = call(lambda row=row: self._board.write(row))
        self._has_written = bool(self._has_written or is_written)
        continue
      if not missing:
        self.agreement = agree(row['seen'], entries)
        return self.agreement
      look(missing)
      pause(self._secs)

  def find_changed(self) -> list[int]:
    """Returns the workers, a list of int, that are not in the last generation.

    Raises:
      tf.errors.OpError: the board does not answer.
    """
    found = _find_entries(self._board.read(), self._num_workers)
    agreed = self.agreement.entries if self.agreement else found
    return [i for i in range(self._num_workers) if found[i] != agreed[i]]

  def _check_place(self, rows: Mapping[int, Row]) -> None:
    """Ends a process whose place another has taken while it stood still."""
    row = rows.get(self._worker)
    if self._has_written and row and row['entry'][0] != self._life:
      raise errors.make_replaced(self._name)


def _find_entries(rows: Mapping[int, Row], num_workers: int) -> list[Any]:
  """Returns each worker's entry; None for one that has no row."""
  return [rows.get(i, {}).get('entry') for i in range(num_workers)]


def _hash(
  entries: Sequence[Entry | None],
) -> str:
  return hashlib.sha256(json.dumps(entries).encode()).hexdigest()[:16]


class _Board:
  """The rows, on worker 0; may be used by several threads."""

  def __init__(self, cluster: Cluster, server: tf.train.Server) -> None:
    place, own = cluster.coordinator_device, cluster.task_device
    with (
      tf.Graph().as_default() as graph,
      tf.device(f'{place}/device:CPU:0'),
    ):
      table = tf.raw_ops.MutableHashTableV2(
        key_dtype=tf.int64, value_dtype=tf.string, shared_name='ring/meeting'
      )
      self._text = tf.placeholder(tf.string, [])
      self._put = tf.raw_ops.LookupTableInsertV2(
        table_handle=table,
        keys=tf.constant(cluster.task_index, tf.int64),
        values=self._text,
      )
      self._all = tf.raw_ops.LookupTableExportV2(
        table_handle=table, Tkeys=tf.int64, Tvalues=tf.string
      )
    config = tf.ConfigProto(device_filters=sorted({place, own}))
    self._open = lambda: tf.Session(server.target, graph=graph, config=config)
    self._session = None
    self._lock = threading.Lock()

  def write(self, row: Row) -> bool:
    """Writes this worker's row; returns True."""
    self._run(self._put, {self._text: json.dumps(row)})
    return True

  def read(self) -> dict[int, Row]:
    """Returns the rows, {worker: dict}."""
    keys, texts = self._run(self._all, None)
    return {
      int(key): json.loads(text) for key, text in zip(keys, texts, strict=True)
    }

  def _run(
    self,
    fetch: tf.Operation | Sequence[tf.Tensor],
    feed: dict[tf.Tensor, str] | None,
  ) -> Any:
    """Runs it; a lost worker 0 does not know the session of before."""
    options = tf.RunOptions(timeout_in_ms=_TIMEOUT_MS)
    with self._lock:
      self._session = self._session or self._open()
      session = self._session
    try:
      return session.run(fetch, feed, options)
    except (tf.errors.OpError, RuntimeError):
      with self._lock:
        if self._session is session:
          self._session = None
      with contextlib.suppress(tf.errors.OpError):
        deadlines.call(session.close, _CLOSE_SECS)
      raise
