"""The table on one task in which every task has a row and a heartbeat.

Unlike a message queue it keeps what was last written, for all to read. It is
made of hash tables with shared names: they need no initialisation, are in no
checkpoint, and are empty again once their task restarts. The table has its own
graph and session.

  rows      host and process of a task, JSON, written when it begins
  settings  what it was started with, JSON, once under its hash: two kinds for
            any number of tasks, which each task reads once
  beats     [life, beat, steps], three integers, every second or two
  busy      what a task takes long over, a text, when it begins and ends

So the cost of a beat does not depend on the number of tasks: it is written, and
only the beat before it is read.
"""

from __future__ import annotations

import contextlib
import json
import threading
import zlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import tensorflow.compat.v1 as tf

if TYPE_CHECKING:
  from distmnist.cluster.cluster import Cluster

# For one session.run; a task that is silent for longer is tried again.
_TIMEOUT_MS = 5000


class Beat(NamedTuple):
  """What a task last wrote: its life (63 bits), beats and steps."""

  life: int
  number: int
  steps: int


_NO_BEAT = Beat(-1, -1, -1)


class HeartbeatTable:
  """This task's access to the table; may be used by several threads."""

  def __init__(self, cluster: Cluster, server: tf.train.Server) -> None:
    """
    Args:
      cluster: this task's; the table is on ps 0, or on worker 0 where there is
        no ps.
      server: of this task.
    """
    place = cluster.coordinator_device
    self._own_key = _key_of(cluster.name)
    self._target = server.target
    filters = sorted({place, cluster.task_device})
    self._config = tf.ConfigProto(device_filters=filters)
    # All ops are on that task, so each call is one message and its answer.
    with (
      tf.Graph().as_default() as self._graph,
      tf.device(f'{place}/device:CPU:0'),
    ):
      self._build_texts()
      self._build_beats()
    # Settings that were read, by their hash.
    self._known: dict[int, dict[str, Any]] = {}
    self._session: tf.Session | None = None
    self._lock = threading.Lock()

  def _build_texts(self) -> None:
    self._key = tf.placeholder(tf.int64, [])
    self._text = tf.placeholder(tf.string, [])
    self._puts, self._finds = {}, {}
    for name in 'rows', 'settings', 'busy':
      table = tf.raw_ops.MutableHashTableV2(
        key_dtype=tf.int64,
        value_dtype=tf.string,
        shared_name=f'heartbeats/{name}',
      )
      self._puts[name] = tf.raw_ops.LookupTableInsertV2(
        table_handle=table, keys=self._key, values=self._text
      )
      self._finds[name] = tf.raw_ops.LookupTableFindV2(
        table_handle=table, keys=self._key, default_value=''
      )
      if name == 'busy':
        self._read_busy = tf.raw_ops.LookupTableExportV2(
          table_handle=table, Tkeys=tf.int64, Tvalues=tf.string
        )

  def _build_beats(self) -> None:
    table = tf.raw_ops.MutableHashTableOfTensorsV2(
      key_dtype=tf.int64,
      value_dtype=tf.int64,
      value_shape=[3],
      shared_name='heartbeats/beats',
    )
    self._beat = tf.placeholder(tf.int64, [3])
    own = tf.constant(self._own_key, tf.int64)
    found = tf.raw_ops.LookupTableFindV2(
      table_handle=table,
      keys=own,
      default_value=tf.constant(_NO_BEAT, tf.int64),
    )

    def put() -> tf.Operation:
      return tf.raw_ops.LookupTableInsertV2(
        table_handle=table, keys=own, values=self._beat
      )

    self._claim = put()
    # Another life under our name is left as it is.
    lives = [tf.constant(_NO_BEAT.life, tf.int64), self._beat[0]]
    is_ours = tf.reduce_any(tf.equal(found[0], tf.stack(lives)))
    with tf.control_dependencies([tf.cond(is_ours, put, tf.no_op)]):
      self._beat_after = tf.identity(found)
    self._read_beats = tf.raw_ops.LookupTableExportV2(
      table_handle=table, Tkeys=tf.int64, Tvalues=tf.int64
    )

  def write(self, row: Mapping[str, Any], settings: Mapping[str, Any]) -> None:
    """Writes this task's `row` and its `settings`."""
    text = json.dumps(settings, sort_keys=True)
    key = zlib.crc32(text.encode())
    self._put('settings', key, text)
    self._known[key] = json.loads(text)
    self._put('rows', self._own_key, json.dumps({**row, 'settings': key}))

  def _put(self, table: str, key: int, text: str) -> None:
    self._run(self._puts[table], {self._key: key, self._text: text})

  def read(self, name: str) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """Returns (row, settings) of the task called `name`, or None.

    Raises:
      tf.errors.OpError: the table's task is gone, silent, or none of ours.
    """
    text = self._find('rows', _key_of(name))
    if not text:
      return None
    row = json.loads(text)
    key = row['settings']
    if key not in self._known:
      settings = self._find('settings', key)
      if not settings:
        return row, {}
      self._known[key] = json.loads(settings)
    return row, self._known[key]

  def _find(self, table: str, key: int) -> bytes:
    return self._run(self._finds[table], {self._key: key})

  def claim(self, beat: Beat) -> None:
    """Writes this task's Beat over whatever is under its name."""
    self._run(self._claim, {self._beat: beat})

  def beat(self, beat: Beat) -> Beat:
    """Writes this task's Beat, unless another life has claimed its name.

    Returns:
      The Beat that was there.
    """
    return Beat(*map(int, self._run(self._beat_after, {self._beat: beat})))

  def read_beats(self) -> dict[str, Beat]:
    """Returns {task name: Beat}; raises tf.errors.OpError as `read` does."""
    keys, values = self._run(self._read_beats)
    return {
      _name_of(int(key)): Beat(*map(int, value))
      for key, value in zip(keys, values, strict=True)
    }

  def write_busy(self, text: str) -> None:
    """Tells the others what this task takes long over; '' for nothing."""
    self._put('busy', self._own_key, text)

  def read_busy(self) -> dict[str, str]:
    """Returns {task name: text} of those that take long over something."""
    keys, texts = self._run(self._read_busy)
    return {
      _name_of(int(key)): text.decode()
      for key, text in zip(keys, texts, strict=True)
      if text
    }

  def _run(
    self, fetches: Any, feed: Mapping[tf.Tensor, Any] | None = None
  ) -> Any:
    options = tf.RunOptions(timeout_in_ms=_TIMEOUT_MS)
    with self._lock:
      session = self._session or tf.Session(
        self._target, graph=self._graph, config=self._config
      )
      self._session = session
      try:
        return session.run(fetches, feed, options)
      except tf.errors.OpError:
        # A task that has restarted does not know the old session.
        self._close()
        raise

  def close(self) -> None:
    with self._lock:
      self._close()

  def _close(self) -> None:
    if self._session is not None:
      with contextlib.suppress(tf.errors.OpError):
        self._session.close()
      self._session = None


def _key_of(name: str) -> int:
  """Returns a task's number: -1, -2, ... for a ps, 0, 1, ... for others."""
  job, index = name.split()
  return -1 - int(index) if job == 'ps' else int(index)


def _name_of(key: int) -> str:
  return f'worker {key}' if key >= 0 else f'ps {-1 - key}'
