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
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from distmnist.common import owner_file, versions
from distmnist.common.names import ATTEMPT, LAUNCH_ID
from distmnist.watching import metrics_file, process_bytes
from distmnist.watching.metrics_line import Line

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
    self._sampler: Sampler | None = None

  @contextlib.contextmanager
  def kept(
    self,
    logdir: str | None,
    task: str,
    life: str,
    every_secs: float,
    collect: Callable[[], dict[str, Any]] = dict,
    sinks: Sequence[Callable[[Line], None]] = (),
  ) -> Iterator[Sampler | None]:
    """Keeps metrics of this process in the block; yields what does.

    Args:
      logdir: None to keep nothing.
      task: such as 'ps 0'.
      life: different in each process.
      every_secs: from one sample to the next.
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

  def write(self, kind: str, **fields: Any) -> None:
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

  def collect_by(self, collect: Callable[[], dict[str, Any]]) -> None:
    """Adds what a worker's `collect` says to the samples.

    See `sample_if_due` for when they come from now on.
    """
    mine = self._sampler
    if mine:
      mine.collect = collect
      mine.pause_secs = min(1.5 * mine.every_secs, threading.TIMEOUT_MAX)


class Sampler:
  """The metrics of one life of a task, from `start` to `close`.

  Attributes:
    collect: returns what this task reports besides the usage of its process;
      may be set.
    every_secs, pause_secs: from one sample to the next, and until one comes
      that nobody has asked for.
    sinks: given each line that is written.
    ending: what to call an orderly end before the work is done.
  """

  def __init__(
    self, logdir: str, task: str, life: str, every_secs: float
  ) -> None:
    """
    Args:
      task: such as 'ps 0'.
      life: different in each process.
      every_secs: from one sample to the next.
    """
    me, every_secs = owner_file.describe_self(), max(LEAST_SECS, every_secs)
    launch = os.environ.get(LAUNCH_ID)
    self.collect: Callable[[], dict[str, Any]] = dict
    self.sinks: list[Callable[[Line], None]] = []
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
    # (kind, fields), 'end' the last.
    self._lines: queue.Queue[tuple[str, Line]] = queue.Queue(_MAX_LINES)
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

  def write(self, kind: str, **fields: Any) -> None:
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
      error: what made this life fail, or ''.
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

  def _give(self, line: Line) -> None:
    self._last_time = line['time']
    for sink in self.sinks:
      sink(line)


class _Count(NamedTuple):
  """What a process has used; None where the system does not count it."""

  time: float  # By time.monotonic().
  sent_bytes: int | None
  received_bytes: int | None
  cpu_secs: float


class Usage:
  """What is used in total, and per second since the last look."""

  def __init__(self) -> None:
    self._sockets = process_bytes.Meter()
    self._mark = self._count()

  def _count(self) -> _Count:
    moved = self._sockets.read() or (None, None)
    return _Count(time.monotonic(), *moved, time.process_time())

  def look(self) -> dict[str, float | None]:
    """Returns numbers by their names in the schema.

    Bytes are counted from when this object was made; None where the system
    does not count them.
    """
    then, now = self._mark, self._count()
    self._mark = now
    secs = max(1e-9, now.time - then.time)
    found = {
      'sent_bytes': now.sent_bytes,
      'received_bytes': now.received_bytes,
      'cpu_secs': now.cpu_secs,
      'cpu_cores': (now.cpu_secs - then.cpu_secs) / secs,
      'rss_bytes': read_rss(),
    }
    for name, before, after in (
      ('sent_bytes', then.sent_bytes, now.sent_bytes),
      ('received_bytes', then.received_bytes, now.received_bytes),
    ):
      if before is not None and after is not None:
        found[f'{name}_per_sec'] = (after - before) / secs
    return found


def read_rss() -> int | None:
  """Returns the resident memory of this process in bytes, None if unknown."""
  try:
    with open('/proc/self/statm', encoding='ascii') as file:
      return int(file.read().split()[1]) * _PAGE
  except (OSError, IndexError, ValueError):
    return None
