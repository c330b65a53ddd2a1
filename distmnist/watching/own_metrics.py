"""The metrics of this process, written to LOGDIR/metrics/TASK/metrics.jsonl.

A thread of its own writes a sample at intervals. What the process uses (bytes
on its sockets, memory, processor time) is read from the kernel. A task that
makes no progress still reports, and nothing waits for the disk: what other
threads have to say goes through a queue. While the disk does not answer the
queue fills, and what comes then is dropped.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import queue
import socket
import threading
import time
from collections.abc import Iterator

from distmnist.common import owner_file, versions
from distmnist.common.names import ATTEMPT, LAUNCH_ID
from distmnist.watching import metrics_file, process_bytes

_log = logging.getLogger(__name__)

# Even if --log_secs is shorter: a line costs a millisecond of a core.
LEAST_SECS = 0.5
# Lines that wait to be written.
_MAX_LINES = 1000
# The most that an end waits for the last lines.
_END_SECS = 10.0
_PAGE = os.sysconf('SC_PAGE_SIZE')


class OwnMetrics:
  """Lines of this process, for whatever adds to them, while they are kept."""

  def __init__(self) -> None:
    self._sampler = None

  @contextlib.contextmanager
  def kept(
    self,
    logdir: str | None,
    task: str,
    life: str,
    every_secs: float,
    collect=dict,
    sinks=(),
  ) -> Iterator[Sampler]:
    """Keeps metrics of this process in the block; yields the Sampler, or None.

    Args:
      logdir: str, or None to keep nothing.
      task: str, such as 'ps 0'.
      life: str, different in each process.
      every_secs: float, from one sample to the next.
      collect, sinks: see Sampler.
    """
    if not logdir:
      yield None
      return
    mine = Sampler(logdir, task, life, every_secs)
    mine.collect = collect
    mine.sinks += sinks
    self._sampler = mine.start()
    error = ''
    try:
      yield mine
    except BaseException as raised:
      error = ' '.join(str(raised).split()) or type(raised).__name__
      raise
    finally:
      self._sampler = None
      mine.close(error)

  def write(self, kind: str, **fields) -> None:
    """Writes a line, if they are kept."""
    mine = self._sampler  # Another thread may end them.
    if mine:
      mine.write(kind, **fields)

  def sample(self) -> None:
    """Has a sample written now; does not wait."""
    self.write('sample')

  def sample_if_due(self) -> None:
    """Has a sample written now, unless there was one lately.

    A worker calls it as it prints a line. So its samples come with its lines,
    and by themselves only where it makes no step.
    """
    mine = self._sampler
    if mine and mine.is_due():
      mine.write('sample')

  def collect_by(self, collect) -> None:
    """Adds what a worker's `collect`, callable() -> dict, says to the samples.

    See `sample_if_due` for when they come from now on.
    """
    mine = self._sampler
    if mine:
      mine.collect = collect
      mine.pause_secs = min(1.5 * mine.every_secs, threading.TIMEOUT_MAX)


class Sampler:
  """The metrics of one life of a task, from `start` to `close`.

  Attributes:
    collect: callable() -> dict, what this task reports besides the usage of
      its process; may be set.
    every_secs, pause_secs: floats, from one sample to the next, and until one
      comes that nobody has asked for.
    sinks: list of callable(line), given each line that is written.
    ending: str, what to call an orderly end before the work is done.
  """

  def __init__(
    self, logdir: str, task: str, life: str, every_secs: float
  ) -> None:
    """
    Args:
      logdir: str.
      task: str, such as 'ps 0'.
      life: str, different in each process.
      every_secs: float, from one sample to the next.
    """
    me, every_secs = owner_file.describe_self(), max(LEAST_SECS, every_secs)
    launch = os.environ.get(LAUNCH_ID)
    self.collect = dict
    self.sinks = []
    self.ending = ''
    self._writer = metrics_file.Writer(
      logdir,
      task,
      life,
      host=socket.gethostname(),
      pid=os.getpid(),
      process={name: me[name] for name in ('pid', 'machine', 'start')},
      attempt=int(os.environ.get(ATTEMPT, '1')),
      **({'launch': launch} if launch else {}),
      versions=versions.find(),
      every_secs=every_secs,
    )
    self.every_secs = min(every_secs, threading.TIMEOUT_MAX)
    self.pause_secs = self.every_secs
    self._last_sample = self._last_asked = -math.inf
    self._usage = Usage()
    self._lines = queue.Queue(_MAX_LINES)  # (kind, fields), 'end' the last.
    self._last_time = 0.0
    self._is_closed = False
    self._thread = threading.Thread(target=self._run, daemon=True)

  def start(self) -> Sampler:
    """Begins with the first sample; the others follow on their own."""
    self._thread.start()
    return self

  def is_due(self) -> bool:
    """Whether a sample may be asked for: the last such is old enough.

    A little less than `every_secs`: a worker's plain lines are as far apart,
    and each comes with a sample. One that came by itself does not count.
    """
    return time.monotonic() - self._last_asked > 0.9 * self.every_secs

  def write(self, kind: str, **fields) -> None:
    """Has a line written, a `sample` as it is then; does not wait."""
    if kind == 'sample':
      # Even if the disk is slow to take it.
      self._last_sample = self._last_asked = time.monotonic()
    if not self._is_closed:
      with contextlib.suppress(queue.Full):
        self._lines.put_nowait((kind, {'time': time.time(), **fields}))

  def close(self, error: str = '') -> None:
    """Writes the last lines, if the disk takes them within some seconds.

    Args:
      error: str, what made this life fail, or ''.
    """
    if self._is_closed or self._thread.ident is None:
      return
    self._is_closed = True
    text = error or self.ending
    end = {'time': time.time(), 'ok': not error, 'text': text}
    deadline = time.monotonic() + _END_SECS
    with contextlib.suppress(queue.Full):
      self._lines.put(('end', end), timeout=_END_SECS)
    self._thread.join(max(0.0, deadline - time.monotonic()))
    if self._thread.is_alive():
      _log.info(
        f'{self._writer.path} takes no lines, as its disk does not answer: the '
        'last metrics are lost'
      )

  def _run(self) -> None:
    kind = None
    self.sample()
    while kind != 'end':
      try:
        next_sample = self._last_sample + self.pause_secs
        secs = min(max(0.0, next_sample - time.monotonic()), self.pause_secs)
        kind, fields = self._lines.get(timeout=secs)
        if kind in ('end', 'sample'):
          self.sample()
        if kind == 'sample':
          continue
        # A sample may have come between what happened and its line.
        fields['time'] = max(fields['time'], self._last_time)
        self._give(self._writer.write(kind, **fields))
      except queue.Empty:
        self.sample()

  def sample(self) -> None:
    """Writes a line of kind `sample` now; called by the thread."""
    # A dict that changes while `collect` reads it is left to the next sample.
    self._last_sample = time.monotonic()
    with contextlib.suppress(RuntimeError):
      fields = self.collect() | self._usage.look()
      self._give(self._writer.write('sample', **fields))

  def _give(self, line) -> None:
    self._last_time = line['time']
    for sink in self.sinks:
      sink(line)


class Usage:
  """What is used in total, and per second since the last look."""

  def __init__(self) -> None:
    self._sockets = process_bytes.Meter()
    self._mark = self._count()

  def _count(self) -> dict[str, float]:
    sent, received = self._sockets.read() or (None, None)
    return {
      'time': time.monotonic(),
      'sent_bytes': sent,
      'received_bytes': received,
      'cpu_secs': time.process_time(),
    }

  def look(self) -> dict[str, float]:
    """Returns a dict of numbers; the schema has their names.

    Bytes are counted from when this object was made; None where the system
    does not count them.
    """
    then, now = self._mark, self._count()
    self._mark = now
    secs = max(1e-9, now['time'] - then['time'])
    found = {name: now[name] for name in now if name != 'time'}
    for name in ('sent_bytes', 'received_bytes'):
      if now[name] is not None and then[name] is not None:
        found[f'{name}_per_sec'] = (now[name] - then[name]) / secs
    found['cpu_cores'] = (now['cpu_secs'] - then['cpu_secs']) / secs
    found['rss_bytes'] = read_rss()
    return found


def read_rss(pid: int | str = 'self') -> int | None:
  """Returns the resident memory of a process in bytes, None if unknown."""
  try:
    with open(f'/proc/{pid}/statm', encoding='ascii') as file:
      return int(file.read().split()[1]) * _PAGE
  except (OSError, IndexError, ValueError):
    return None
