"""metrics.jsonl: what a task reports about itself, one JSON object a line.

Each task has its own, LOGDIR/metrics/TASK/metrics.jsonl, which all its lives
append to. metrics.schema.json defines the fields. All that a sample counts is
counted from the beginning of its life: the last sample of each life says what
it did, and a run did the sum of these. A line is written in one write; one that
cannot be written does not end the training, and one that is cut off, by a full
disk, is ignored. A file of MAX_BYTES is rewritten with half of its samples.

Beside it, state.jsonl says how things stand: of the lines of the last life
those that `status` and the like are made of. It is replaced with each line, so
who looks at a run of weeks reads some lines a task.

Nothing can be appended in a store. There each life of a worker has an object of
its own, LOGDIR/metrics/TASK/LIFE.jsonl, with the lines of a state.jsonl.
"""

from __future__ import annotations

import contextlib
import glob
import heapq
import logging
import math
import os
import re
import statistics
import threading
import time
from collections.abc import Hashable, Iterable, Iterator
from typing import Any, BinaryIO

from distmnist.common import files, layout
from distmnist.storage import paths, urls
from distmnist.watching import metrics_line
from distmnist.watching.metrics_line import Line

_log = logging.getLogger(__name__)

NAME = 'metrics.jsonl'
STATE = 'state.jsonl'
LAUNCHER = 'launcher'
MAX_BYTES = 2**26
# A longer pause between samples counts as this many usual ones.
_MOST_PAUSES = 10
# In all lines of samples, near their beginning.
_SAMPLE = b'"kind": "sample"'
_MEANS = b'"kind": "means"'
_TIME = re.compile(rb'"time": ([\d.]+)')
# What is read of a file without a state.jsonl.
_END_BYTES = 2**16
# Samples that are parsed to find the last one of each life, of those between.
_FEW_SAMPLES = 100
# What a launcher tells of its tasks that counts until it tells more.
_OF_TASKS = 'started', 'ended', 'left'


def path_of(logdir: str, task: str) -> str:
  return os.path.join(layout.metrics_dir(logdir, task), NAME)


def find(logdir: str) -> dict[str, str]:
  """Returns {task name: path} of the files in `logdir`."""
  found = glob.glob(layout.metrics_dir(glob.escape(logdir), f'*/{NAME}'))
  return {
    os.path.basename(os.path.dirname(path)).replace('_', ' '): path
    for path in sorted(found)
  }


def has_begun(sample: Line) -> bool:
  """Whether work can be counted from a sample on."""
  return bool(sample.get('examples')) or sample.get('state') == 'serving'


class Writer:
  """Appends the lines of one life of a task, the first of kind `start`."""

  def __init__(self, logdir: str, task: str, life: str, **start: Any) -> None:
    """
    Args:
      logdir: nothing is written while it does not exist: a ps may be on a host
        that does not share it. In a store, nothing before there is work to
        count: the chief moves an earlier run aside until then.
      task: such as 'ps 0'.
      life: different in each process.
      start: fields of the first line.
    """
    self._logdir = logdir
    self._is_in_store = urls.is_remote(logdir)
    self.path = path_of(logdir, task)
    if self._is_in_store:
      self.path = os.path.join(os.path.dirname(self.path), f'{life}.jsonl')
    self._own = {'task': task, 'life': life}
    self._start = self._clean({'kind': 'start', 'time': time.time(), **start})
    self._has_failed = False
    self._lock = threading.Lock()
    self._inode: int | None = None
    self._most_bytes = MAX_BYTES
    self._state = _State(os.path.join(os.path.dirname(self.path), STATE))

  def write(self, kind: str, **fields: Any) -> Line:
    """Writes one line; returns it.

    Args:
      kind: 'sample', 'means', 'evaluation', 'event' or 'end'.
      fields: what JSON can hold; a number that is not finite becomes null.
    """
    line = self._clean({'kind': kind, 'time': time.time(), **fields})
    try:
      with self._lock:  # A launcher's threads write to the same.
        self._append(line)
    except OSError as error:
      if not self._has_failed:
        self._has_failed = True
        _log.info(
          f'{self.path} cannot be written: {error.strerror}; the training '
          'goes on without'
        )
    return line

  def _clean(self, line: Line) -> Line:
    return metrics_line.clean(self._own | line, metrics_line.shorten)

  def _append(self, line: Line) -> None:
    if self._is_in_store:
      self._put(line)
      return
    if not os.path.isdir(self._logdir):
      return
    lines = [line]
    # The file may have been moved away: each new one gets a start line.
    if not self._is_begun():
      lines.insert(0, self._start)
      self._state.begin(follows=os.path.exists(self.path))
    os.makedirs(os.path.dirname(self.path), exist_ok=True)
    size = _append_whole(self.path, metrics_line.format_lines(lines))
    self._inode = os.stat(self.path).st_ino
    for new in lines:
      self._state.note(new)
    # Means tell nothing of how things stand, and may be many.
    if any(new['kind'] != 'means' for new in lines):
      self._state.write()
    if size > self._most_bytes:
      self._most_bytes = size + MAX_BYTES // 8  # If it fails.
      self._most_bytes = max(MAX_BYTES, 3 * _thin(self.path) // 2)
      self._inode = os.stat(self.path).st_ino

  def _put(self, line: Line) -> None:
    known = self._state.to_bytes()
    self._state.note(self._start)
    self._state.note(line)
    if self._state.has_begun and self._state.to_bytes() != known:
      paths.write(self.path, self._state.to_bytes())

  def _is_begun(self) -> bool:
    try:
      return os.stat(self.path).st_ino == self._inode
    except FileNotFoundError:
      return False


class _State:
  """What state.jsonl has: the lines of one life that tell how things stand.

  Its start and its end, its first sample from which work can be counted and its
  last one, the last evaluation of each split by any life, and of each task that
  a launcher has started the last start and the end after it.
  """

  def __init__(self, path: str) -> None:
    self._path = path
    self._texts: dict[Hashable, bytes] = {}  # What it tells: the line.
    self._is_ours = False

  @property
  def has_begun(self) -> bool:
    """Whether there is work to count; see the function of this name."""
    return 'first' in self._texts

  def to_bytes(self) -> bytes:
    return b''.join(self._texts.values())

  def begin(self, follows: bool) -> None:
    """Begins with nothing but the evaluations of the life before.

    Args:
      follows: whether there is a life before, in the same file.
    """
    self._is_ours &= follows  # Once ours, it may be a later life's by now.
    self._texts = {
      ('evaluation', line['split']): metrics_line.format_lines([line])
      for line in (_read_file(self._path) if follows else ())
      if line['kind'] == 'evaluation'
    }

  def note(self, line: Line) -> None:
    texts = self._texts
    key: Any = line['kind']
    if key == 'means':
      return
    if key == 'evaluation':
      key = key, line['split']
    elif key == 'sample' and 'first' in texts:
      key = 'last'
    elif key == 'sample':
      texts.pop('last', None)
      key = 'first' if has_begun(line) else 'last'
    elif key == 'event':
      key = line['event'], line.get('about')
      if key[0] not in _OF_TASKS:
        return
      if key[0] == 'started':
        texts.pop(('ended', key[1]), None)
    texts[key] = metrics_line.format_lines([line])

  def write(self) -> None:
    """Replaces the file, unless a later life has done so.

    A process that was suspended may wake after another has taken its place.

    Raises:
      OSError: it cannot be written.
    """
    with contextlib.suppress(FileNotFoundError), open(self._path, 'rb') as file:
      if self._is_ours and self._texts['start'] not in file.read():
        return
    # Not by files.replacing: that waits for the disk each time, and what is
    # lost in a power cut is out of date after it. One draft for all lives.
    draft = f'{self._path}.new'
    fd = files.no_follow(draft, os.O_WRONLY | os.O_TRUNC | os.O_CREAT)
    try:
      _write_all(fd, self.to_bytes())
    finally:
      os.close(fd)
    with contextlib.suppress(FileNotFoundError):  # Another life was faster.
      os.replace(draft, self._path)
    self._is_ours = True


def _write_all(fd: int, data: bytes) -> None:
  if os.write(fd, data) < len(data):
    raise OSError(0, 'no space is left')


def _append_whole(path: str, data: bytes) -> int:
  """Appends `data` to a file; returns the file's size.

  Raises:
    OSError: not all of it is written. What is will be no line: the next write
      begins another. It stays, as another life may have written after it.
  """
  flags = os.O_RDWR | os.O_APPEND | os.O_CREAT
  fd = files.no_follow(path, flags)
  try:
    size = os.fstat(fd).st_size
    # The write before ours may have been cut off.
    if size and os.pread(fd, 1, size - 1) != b'\n':
      data = b'\n' + data
    _write_all(fd, data)
    return size + len(data)
  finally:
    os.close(fd)


def _thin(path: str) -> int:
  """Leaves out half of the samples of a file; returns its size in bytes.

  Those that stay are evenly spread over the time that tasks were at work, so
  that the beginning of a long run is not lost. The last one before any other
  line but means stays; one that was cut off does not.

  Raises:
    OSError: it cannot be read or rewritten.
  """
  # A sample, and the means after it.
  gap, last, waiting, behind = _find_gap(path), -math.inf, b'', b''
  with open(path, 'rb') as old, files.replacing(path, 'wb') as new:
    for text in old:
      if _MEANS in text:
        if waiting:
          behind += text
        else:
          new.write(text)
        continue
      if _SAMPLE not in text:
        new.write(waiting + behind + text)
        waiting, behind, last = b'', b'', -math.inf
        continue
      if not _is_sample(text):
        continue
      new.write(behind)
      time = _find_time(text)
      is_close = abs(time - last) < gap  # A clock may be set back.
      waiting, behind = text if is_close else b'', b''
      if not is_close:
        new.write(text)
        last = time
    new.write(waiting + behind)
    return new.tell()


def _find_gap(path: str) -> float:
  """Returns the seconds between samples of a file that leave half of them.

  The time before a line of another kind does not count: it may be the start of
  a life, after days without one. Of a pause within a life, or a clock that was
  set, little counts.
  """
  pauses, num_samples, last = [], 0, math.inf
  with open(path, 'rb') as file:
    for text in file:
      if _MEANS in text:
        continue
      time = _find_time(text) if _SAMPLE in text else math.inf
      num_samples += _SAMPLE in text
      if last < time < math.inf:
        pauses.append(time - last)
      last = time
  most = _MOST_PAUSES * statistics.median(pauses or [0.0])
  secs = sum(min(pause, most) for pause in pauses)
  # A little less than twice: samples come at multiples of a period.
  return 1.9 * secs / max(1, num_samples)


def _is_sample(text: bytes) -> bool:
  """Whether a line is a sample, and a whole one, without parsing it."""
  is_whole = text.endswith(b'}\n') and text.count(b'{') == text.count(b'}')
  return is_whole and _SAMPLE in text


def _find_time(text: bytes) -> float:
  """Returns the time of a whole line of a sample, without parsing it all."""
  found = _TIME.search(text) if text.endswith(b'}\n') else None
  return float(found[1]) if found else math.inf


def read_state(logdir: str) -> tuple[list[Line], dict[str, float]]:
  """Returns how things stand in a run, however long it has been.

  Returns:
    The lines of all state.jsonl, by time, and {task: when its metrics.jsonl was
    written last}, seconds since 1970 by the clock of the file server.
  """
  lines: list[Line] = []
  written: dict[str, float] = {}
  for task, path in find(logdir).items():
    with contextlib.suppress(OSError):  # It was removed, or moved away.
      written[task] = os.stat(path).st_mtime
      state = _read_file(os.path.join(os.path.dirname(path), STATE))
      lines += state or _read_end(path)
  return sorted(lines, key=lambda line: line['time']), written


def _read_file(path: str) -> list[Line]:
  with contextlib.suppress(OSError):
    lines = paths.read_bytes(path).splitlines()
    return [line for text in lines if (line := metrics_line.parse(text))]
  return []


def _read_end(path: str) -> list[Line]:
  """Returns what the end of a file says: of one that was copied alone, say."""
  with open(path, 'rb') as file:
    first = metrics_line.parse(file.readline())
    file.seek(max(0, os.fstat(file.fileno()).st_size - _END_BYTES))
    lines = [line for text in file if (line := metrics_line.parse(text))]
  if not (first and lines) or first['life'] != lines[-1]['life']:
    return lines
  return lines if first in lines else [first, *lines]


def read_last_samples(
  logdir: str, job: str, indices: Iterable[int]
) -> list[Line]:
  """Returns the last sample of each life of the tasks of a job, in no order.

  Args:
    logdir: of a run, on a disk or in a store.
    job: such as 'worker'.
    indices: tasks that are known to write there: those on other hosts may have
      begun too lately for the folders to be listed here, on NFS.

  Raises:
    OSError: a store does not list its folders.
  """
  known = [f'{job} {index}' for index in indices]
  last: dict[tuple[str, str], Line] = {}
  for line in _iterate_lives(logdir, job, known):
    if line['kind'] == 'sample':
      last[line['task'], line['life']] = line
  return list(last.values())


def _iterate_lives(
  logdir: str, job: str, known: Iterable[str]
) -> Iterator[Line]:
  if not urls.is_remote(logdir):
    found = find(logdir) | {task: path_of(logdir, task) for task in known}
    for task, path in found.items():
      if task.split()[0] == job:
        yield from _iterate_file(path, _FEW_SAMPLES)
    return
  root = os.path.join(logdir, layout.METRICS)
  for folder in paths.list_names(root):
    if re.fullmatch(rf'{job}_\d+', folder):
      for name in paths.list_names(os.path.join(root, folder)):
        if name.endswith('.jsonl'):
          yield from _read_file(os.path.join(root, folder, name))


def iterate(logdir: str, num_samples: float = math.inf) -> Iterator[Line]:
  """Yields the lines of all tasks by time, one of a file in memory at a time.

  Args:
    num_samples: of the samples about this many, evenly spread over each file,
      and the last one before any other line.
  """
  found = find(logdir).values()
  share = num_samples / max(1, len(found))
  return heapq.merge(
    *(_iterate_file(path, share) for path in found),
    key=lambda line: line['time'],
  )


def _iterate_file(path: str, num_samples: float) -> Iterator[Line]:
  # A pipe that nobody fills would be waited for.
  if not os.path.isfile(path):
    return
  with contextlib.suppress(OSError), open(path, 'rb') as file:
    for text in _choose(file, num_samples):
      if text.endswith(b'\n') and (line := metrics_line.parse(text)):
        yield line


def _choose(file: BinaryIO, num_samples: float) -> Iterator[bytes]:
  """Yields the lines of a file, of its samples a part; see `iterate`."""
  beginning = file.read(2**16)
  file.seek(0)
  line_bytes = len(beginning) / max(1, beginning.count(b'\n'))
  part = int(os.fstat(file.fileno()).st_size / num_samples)
  if part <= line_bytes:
    yield from file
    return
  # A part is read and counted at once: a line takes far longer on its own.
  while data := file.read(part):
    data += file.readline()
    text = data[data.rfind(b'\n', 0, -1) + 1 :]
    if data.count(b'\n') == data.count(_SAMPLE) and _is_sample(text):
      yield text
      continue
    last = b''
    for text in data.splitlines(keepends=True):
      is_sample = _is_sample(text)
      if last and not is_sample:
        yield last
      if not is_sample:
        yield text
      last = text if is_sample else b''
    if last:
      yield last


def read_first_time(path: str) -> float | None:
  """Returns the time of the first line at `path`, or None."""
  with contextlib.suppress(OSError), open(path, 'rb') as file:
    if line := metrics_line.parse(file.readline()):
      return line['time']
  return None
