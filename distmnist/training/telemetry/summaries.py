"""Writes what TensorBoard shows; a failed write does not end the training.

tf.summary.FileWriter writes in a thread of its own, which a full disk kills
with a traceback. Here each write succeeds or fails in the caller.
"""

from __future__ import annotations

import bisect
import contextlib
import itertools
import logging
import os
import socket
import time
from collections.abc import Iterable, Mapping

import tensorflow.compat.v1 as tf

from distmnist.cluster import errors
from distmnist.storage import mirror

_log = logging.getLogger(__name__)

# One for each file of events of this process.
_numbers = itertools.count()
# After a failed write; what comes until then is lost.
_RETRY_SECS = 10.0


def read_tags(serialized: bytes) -> set[str]:
  """Returns the tags of what a tf.summary op has made, bytes."""
  return {value.tag for value in tf.Summary.FromString(serialized).value}


class Writer:
  """Adds events to a folder.

  A write that fails is logged once. Later ones go to another file: a partial
  record would hide all that follow it.
  """

  def __init__(self, folder: str) -> None:
    """
    Args:
      folder: made here.
    """
    self._folder = mirror.localize(folder)
    self._path = ''
    self._records: tf.io.TFRecordWriter | None = None
    self._is_empty = True
    self._has_failed = False
    self._next_try = 0.0
    self._forgotten_from: int | None = None

  def begin_session(self, step: int | None = None) -> None:
    """Begins another file; TensorBoard forgets what comes after `step`.

    It forgets it in all files of the folder that it has read before, and reads
    them in the order of their names: one writer of a folder says from where,
    and the others only begin another file, too.

    Args:
      step: the global step to which the training has gone back; None if another
        writer of the folder says it.
    """
    self.close()
    self._path = ''
    self._forgotten_from = None if step is None else step + 1

  def write_scalars(self, scalars: Mapping[str, float], step: int) -> None:
    """Writes {tag: number} as one summary at `step`."""
    self._write(
      [
        tf.Summary.Value(tag=tag, simple_value=float(number))
        for tag, number in scalars.items()
      ],
      step,
    )

  def write_summary(self, serialized: bytes, step: int) -> None:
    """Writes what a tf.summary op has made at `step`."""
    self._write(tf.Summary.FromString(serialized).value, step)

  def write_histogram(
    self, tag: str, counts: Mapping[int, int], step: int
  ) -> None:
    """Writes {whole number: its count} as one summary at `step`.

    Up to 1000 each number has its own bucket, which reaches half to either side
    of it; above, a bucket is a tenth wider than the one before.
    """
    low, high = min(counts), max(counts)
    limits = _make_bucket_limits(low, high)
    buckets = [0] * len(limits)
    for number, n in counts.items():
      buckets[bisect.bisect_left(limits, number)] += n
    histogram = tf.HistogramProto(
      min=low,
      max=high,
      num=sum(counts.values()),
      sum=sum(number * n for number, n in counts.items()),
      sum_squares=sum(number**2 * n for number, n in counts.items()),
      bucket_limit=limits,
      bucket=buckets,
    )
    self._write([tf.Summary.Value(tag=tag, histo=histogram)], step)

  def write_graph(self, graph: tf.Graph) -> None:
    """Writes a tf.Graph."""
    graph_def = graph.as_graph_def(add_shapes=True).SerializeToString()
    self._write_event(tf.Event(graph_def=graph_def))

  def close(self) -> None:
    """Closes the file."""
    if self._records:
      with contextlib.suppress(tf.errors.OpError):
        self._records.close()
      self._records = None

  def _open(self) -> tf.io.TFRecordWriter:
    # TensorBoard reads the files in the order of their names.
    name = f'{int(time.time()):010d}.{socket.gethostname()}'
    self._path = os.path.join(
      self._folder,
      f'events.out.tfevents.{name}.{os.getpid()}.{next(_numbers):04d}',
    )
    self._is_empty = True
    os.makedirs(self._folder, exist_ok=True)
    self._records = records = tf.io.TFRecordWriter(self._path)
    version = tf.Event(wall_time=time.time(), file_version='brain.Event:2')
    records.write(version.SerializeToString())
    if self._forgotten_from is not None:
      start = tf.SessionLog(status=tf.SessionLog.START)
      event = tf.Event(
        wall_time=time.time(), step=self._forgotten_from, session_log=start
      )
      records.write(event.SerializeToString())
      self._forgotten_from = None
    return records

  def _write(self, values: Iterable[tf.Summary.Value], step: int) -> None:
    self._write_event(tf.Event(summary=tf.Summary(value=values), step=step))

  def _write_event(self, event: tf.Event) -> None:
    if time.monotonic() < self._next_try:
      return
    event.wall_time = time.time()
    try:
      # A user may have removed the folder.
      records = self._records
      if records is None or not os.path.exists(self._path):
        self.close()
        records = self._open()
      records.write(event.SerializeToString())
      records.flush()
      self._is_empty = False
    except (OSError, tf.errors.OpError) as error:
      self._note_failure(error)

  def _note_failure(self, error: Exception) -> None:
    reason = getattr(error, 'strerror', None)
    if isinstance(error, tf.errors.OpError):
      reason = errors.explain(error)
    if not self._has_failed:
      self._has_failed = True
      _log.info(
        f'cannot write summaries to {self._folder}: {reason or error}; the '
        'training goes on without, until they can be written again'
      )
    self._next_try = time.monotonic() + _RETRY_SECS
    self.close()
    if self._is_empty:
      with contextlib.suppress(OSError):
        os.remove(self._path)
    self._path = ''


def write_graph(folder: str) -> None:
  """Writes the default graph as it is now to `folder`, for TensorBoard."""
  with contextlib.closing(Writer(folder)) as writer:
    writer.write_graph(tf.get_default_graph())


def _make_bucket_limits(low: int, high: int) -> list[float]:
  """Returns the upper ends of the buckets, the first below."""
  limits = [low - 0.5]
  while limits[-1] < high:
    width = 1 if limits[-1] < 1000 else limits[-1] // 10
    limits.append(limits[-1] + width)
  return limits
