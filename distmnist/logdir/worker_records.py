"""What each life of each worker has done: a file a life in lives/.

A report covers a whole run, and a run may take many processes: it is resumed,
or a worker is killed and started again. So each process keeps its sums in a
file of its own, which the chief reads at the end. They are written with each
line of metrics.jsonl, and are those of that line: what a report sums up is what
`status` has shown. A killed process loses what it did after its last line, some
seconds of work.
"""

import concurrent.futures
import json
import logging
import os
import re
import threading
import time

from distmnist.common import files
from distmnist.logdir import logdirs, report
from distmnist.storage import paths

_log = logging.getLogger(__name__)

# Where no metrics are kept: in a store.
_WRITE_SECS = 5.0
_CLOSE_SECS = 10.0


class Sums:
  """Keeps the sums of this life.

  They are written in another thread, the sampler's if metrics are kept: where
  workers wait for each other, one worker's slow disk would slow them all.
  """

  def __init__(self, stats, logdir, metrics):
    """
    Args:
      stats: report.WorkerStats of this life.
      logdir: str, or None: then nothing is written.
      metrics: own_metrics.OwnMetrics of this process.
    """
    self._stats, self._metrics = stats, metrics
    self._path = logdir and _find_path(logdir, stats)
    self._writer = concurrent.futures.ThreadPoolExecutor(1)
    self._last_write = None
    self._next_write = 0.0
    self._has_failed = False
    self._closing_text = None
    self._writing = threading.Lock()

  def write_if_due(self):
    """Writes them after a step, unless they were written lately."""
    now = time.monotonic()
    if not self._path or now < self._next_write:
      return
    if self._metrics.are_kept():
      self._next_write = float('inf')
      self._metrics.sample()  # The first one; others follow at intervals.
      return
    if self._last_write is None or self._last_write.done():
      self._next_write = now + _WRITE_SECS
      self._last_write = self._writer.submit(self._write, self._encode())

  def keep(self):
    """Writes the sums as they are now; returns them, a report.WorkerStats."""
    with self._writing:
      sums = self._stats.copy()
      if self._path and sums.local_steps and not sums.has_ended:
        self._write(json.dumps(sums.to_message()))
      return sums

  def end(self):
    """Writes them for the last time, as the loop has ended without an error."""
    self._stats.has_ended = True
    self.close()

  def close(self):
    """Writes the sums as they are now; also after a loop that has failed."""
    self._writer.shutdown()
    text = self._encode()
    if self._path and self._stats.local_steps and text != self._closing_text:
      self._closing_text = text
      # The sampler's thread may wait for its disk.
      is_free = self._writing.acquire(timeout=_CLOSE_SECS)
      try:
        self._write(text)
      finally:
        if is_free:
          self._writing.release()

  def _encode(self):
    return json.dumps(self._stats.to_message())

  def _write(self, text):
    try:
      paths.make_folders(os.path.dirname(self._path))
      with files.replacing(self._path) as file:
        file.write(text + '\n')
    except OSError as error:
      if not self._has_failed:
        self._has_failed = True
        _log.info(
          f'{self._path} cannot be written: {error.strerror}; should this '
          'process be killed, the report will lack what it did'
        )


def gather(logdir, present):
  """Returns what is known of all lives of the run.

  Args:
    logdir: str or None.
    present: list of report.WorkerStats, of the processes that are ending.

  Returns:
    (lives, unknown): a list of report.WorkerStats, each worker's in order of
    start; and the workers (list of int) whose earlier lives could not have
    been found, as they have no log directory or another one.
  """
  unknown = []
  for stats in present:
    # Looked up by name: the listing of a folder on NFS may be outdated.
    is_found = logdir and paths.exists(_find_path(logdir, stats))
    if not is_found and (stats.local_steps or not logdir):
      unknown.append(stats.worker)
  found = read(logdir) if logdir else []
  here = {stats.life for stats in present}
  lives = [*present, *(stats for stats in found if stats.life not in here)]
  # A process that found all work done is no life, if there was another.
  busy = {stats.worker for stats in lives if stats.local_steps}
  lives = [s for s in lives if s.local_steps or s.worker not in busy]
  return sorted(lives, key=lambda s: (s.worker, s.start)), sorted(unknown)


def read(logdir):
  """Returns the list of report.WorkerStats in `logdir`, in no particular order.

  Those written by another version of the program are left out.
  """
  found, folder = [], logdirs.lives_dir(logdir)
  for name in paths.list_names(folder):
    if not re.fullmatch(r'worker_.*\.json', name):
      continue
    try:
      message = json.loads(paths.read_text(os.path.join(folder, name)))
      found.append(report.WorkerStats.from_message(message))
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
      continue
  return found


def _find_path(logdir, stats):
  name = f'worker_{stats.worker}_{stats.life}.json'
  return os.path.join(logdirs.lives_dir(logdir), name)
