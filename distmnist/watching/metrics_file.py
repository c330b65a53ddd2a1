"""metrics.jsonl: what a task reports about itself, one JSON object a line.

Each task has its own, LOGDIR/metrics/TASK/metrics.jsonl, which all its lives
append to; a run in a store has none, as nothing can be appended there.
metrics.schema.json defines the fields. A line is written in one write; one that
cannot be written does not end the training, and one that is cut off, by a full
disk, is ignored.

A file of MAX_BYTES is rewritten with every second sample. Beside it,
summary.jsonl repeats what counts of each life: every line that is no sample,
and its first and last sample. So who looks at a run of weeks reads that, the
newest lines, and of the others an evenly spread part.
"""

import contextlib
import glob
import heapq
import json
import logging
import math
import os
import re
import time

from distmnist.common import files, layout
from distmnist.watching import task_state

_log = logging.getLogger(__name__)

NAME = 'metrics.jsonl'
SUMMARY = 'summary.jsonl'
LAUNCHER = 'launcher'
MAX_BYTES = 2**26
# In all lines of samples, near their beginning.
_SAMPLE = b'"kind": "sample"'
# What is read of the files of a run, unless every line counts: files up to
# their share of _PART_BYTES are read whole, of others the first and the last
# bytes and a share of _PART_LINES.
_PART_BYTES, _PART_LINES = 2**24, 20_000
_LEAST_BYTES, _LEAST_LINES = 2**15, 20
_FIRST_BYTES, _LAST_BYTES = 2**12, 2**14


def path_of(logdir, task):
  return os.path.join(layout.metrics_dir(logdir, task), NAME)


def find(logdir):
  """Returns {task name: path} of the files in `logdir`."""
  paths = glob.glob(layout.metrics_dir(glob.escape(logdir), f'*/{NAME}'))
  return {
    os.path.basename(os.path.dirname(path)).replace('_', ' '): path
    for path in sorted(paths)
  }


class Writer:
  """Appends the lines of one life of a task, the first of kind `start`."""

  def __init__(self, logdir, task, life, **start):
    """
    Args:
      logdir: str. Nothing is written while it does not exist: a ps may be on
        a host that does not share it.
      task: str, such as 'ps 0'.
      life: str, different in each process.
      start: fields of the first line.
    """
    self._logdir = logdir
    self.path = path_of(logdir, task)
    self._own = {'task': task, 'life': life}
    self._start = {'kind': 'start', 'time': time.time(), **start}
    self._has_failed = False
    self._inode = self._last_sample = None
    self._has_first = False
    self._most_bytes = MAX_BYTES

  def write(self, kind, **fields):
    """Writes one line; returns it as a dict.

    Args:
      kind: 'sample', 'evaluation', 'event' or 'end'.
      fields: what JSON can hold; a number that is not finite becomes null.
    """
    line = {'kind': kind, 'time': time.time(), **fields}
    try:
      self._append(line)
    except OSError as error:
      if not self._has_failed:
        self._has_failed = True
        _log.info(
          f'{self.path} cannot be written: {error.strerror}; the training '
          'goes on without'
        )
    return clean(self._own | line, _shorten)

  def _append(self, line):
    if not os.path.isdir(self._logdir):
      return
    lines = [line]
    # The file may have been moved away: each new one gets a start line.
    if self._start and not self._is_begun():
      lines.insert(0, self._start)
      self._has_first = False
      self._summarize_earlier()
    os.makedirs(os.path.dirname(self.path), exist_ok=True)
    size = _append_whole(self.path, self._format(lines))
    self._summarize(lines)
    if size > self._most_bytes:
      self._most_bytes = size + MAX_BYTES // 8  # If it fails.
      self._most_bytes = max(MAX_BYTES, 3 * _thin(self.path) // 2)
    self._inode = os.stat(self.path).st_ino

  def _format(self, lines):
    """Returns lines (list of dict) as the bytes of a file."""
    found = (json.dumps(clean(self._own | x, _shorten)) for x in lines)
    return ''.join(f'{text}\n' for text in found).encode()

  def _summarize(self, lines):
    found = []
    for line in lines:
      if line['kind'] == 'sample':
        self._last_sample = line
        if not self._has_first and task_state.has_begun(line):
          self._has_first = True
          found.append(line)
      else:
        is_end = line['kind'] == 'end' and self._last_sample
        found += [self._last_sample, line] if is_end else [line]
    if found:
      _append_whole(self._summary_path, self._format(found))

  def _summarize_earlier(self):
    """Keeps the last sample of a life that was killed."""
    with contextlib.suppress(OSError), open(self.path, 'rb') as file:
      file.seek(max(0, os.fstat(file.fileno()).st_size - _LAST_BYTES))
      samples = [text for text in file if _SAMPLE in text and _parse(text)]
      if samples:
        _append_whole(self._summary_path, samples[-1])

  @property
  def _summary_path(self):
    return os.path.join(os.path.dirname(self.path), SUMMARY)

  def _is_begun(self):
    try:
      return os.stat(self.path).st_ino == self._inode
    except FileNotFoundError:
      return False


def _append_whole(path, data):
  """Appends `data` to a file; returns the file's size, an int.

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
    if os.write(fd, data) < len(data):
      raise OSError(0, 'no space is left')
    return size + len(data)
  finally:
    os.close(fd)


def _thin(path):
  """Leaves out every second sample of a file; returns its size in bytes.

  The last one before any other line stays, and the staleness that a sample has
  counted is added to the next. Raises OSError.
  """
  waiting = None
  with open(path, 'rb') as old, files.replacing(path, 'wb') as new:
    for text in old:
      is_sample = _SAMPLE in text
      if is_sample and waiting is None:
        waiting = text
        continue
      if is_sample:
        text = _add_staleness(waiting, text)
      elif waiting is not None:
        new.write(waiting)
      waiting = None
      new.write(text)
    if waiting is not None:
      new.write(waiting)
    return new.tell()


def _add_staleness(earlier, text):
  """Returns the line `text` with the counts of the one before added."""
  if b'"staleness": {"' not in earlier:
    return text
  before, line = _parse(earlier), _parse(text)
  if not (before and line and before['life'] == line['life']):
    return earlier + text
  counts = dict(before['staleness'])
  for value, count in line.get('staleness', {}).items():
    counts[value] = counts.get(value, 0) + count
  return (json.dumps(line | {'staleness': counts}) + '\n').encode()


def clean(value, shorten=float):
  """Returns `value` as JSON has it, with None for floats that are not finite.

  Args:
    value: a nest of dicts, lists and tuples.
    shorten: callable, of a finite float.
  """
  if isinstance(value, dict):
    return {str(name): clean(x, shorten) for name, x in value.items()}
  if isinstance(value, (list, tuple)):
    return [clean(x, shorten) for x in value]
  if hasattr(value, 'item'):  # From NumPy.
    value = value.item()
  if not isinstance(value, float):
    return value
  return shorten(value) if math.isfinite(value) else None


def _shorten(value):
  return round(value, 3) if abs(value) >= 1e6 else float(f'{value:.7g}')


class Follower:
  """Reads what all tasks of a run write, as it comes.

  Attributes:
    written: {task: when its file was written last}, seconds since 1970 by the
      clock of the file server.
    has_lost: bool, whether the last `read_new` found a file gone, moved aside
      with an earlier run, say: its lines count no more.
  """

  def __init__(self, logdir, has_all=True):
    """
    Args:
      logdir: str.
      has_all: bool, whether every line counts. If not, of large files the first
        look takes what their summaries have and an evenly spread part.
    """
    self._logdir, self._has_all = logdir, has_all
    self.written, self.has_lost = {}, False
    self._places = {}  # Path: _Place.

  def read_new(self):
    """Returns the lines since the last call, a list of dict by time.

    Anything but whole lines of JSON is left out.
    """
    return list(self.iterate_new())

  def iterate_new(self):
    """Returns an iterator over what `read_new` returns, to be used up.

    Of a file it holds one line at a time: a run of weeks has millions.
    """
    paths = find(self._logdir)
    gone = self._places.keys() - paths.values()
    self.has_lost = bool(gone)
    for path in gone:
      del self._places[path]
    found = []
    for task, path in paths.items():
      with contextlib.suppress(OSError):  # It was removed, or moved away.
        found.append(self._open(task, path, len(paths)))
    return heapq.merge(*found, key=lambda line: line['time'])

  def _open(self, task, path, num_files):
    """Returns an iterator over the lines of a file that are not read."""
    place = self._places.get(path)
    file = open(path, 'rb')  # noqa: SIM115 (closed when it is used up)
    status = os.fstat(file.fileno())
    self.written[task] = status.st_mtime
    if place and (place.inode != status.st_ino or status.st_size < place.end):
      is_thinned = place.first and file.readline() == place.first
      self.has_lost |= not is_thinned
      place = _Place(status.st_ino, place if is_thinned else None)
    elif not place:
      place = _Place(status.st_ino)
      share = max(_LEAST_BYTES, _PART_BYTES // num_files)
      if not self._has_all and status.st_size > share:
        self._places[path] = place
        with file:
          count = max(_LEAST_LINES, _PART_LINES // num_files)
          return iter(_read_part(file, status.st_size, place, count))
    self._places[path] = place
    file.seek(place.end)
    return _iterate(file, place)


class _Place:
  """How far a file is read.

  Attributes:
    inode: int. first: bytes, its first line. end: int, bytes that are read.
    time: float, of the latest line that was read, and newest: list of bytes,
      the lines of this time.
    before: _Place of the same file before it was thinned, or None.
  """

  def __init__(self, inode, before=None):
    self.inode, self.before = inode, before
    self.first, self.end = b'', 0
    self.time, self.newest = -math.inf, []

  def note(self, time, text):
    if time > self.time:
      self.time, self.newest = time, []
    if time == self.time:
      self.newest.append(text)

  def is_read(self, time, text):
    """Whether a line of the thinned file was read before."""
    if not self.before:
      return False
    if time != self.before.time:
      return time < self.before.time
    # A sample may have got the counts of the one before it.
    return _SAMPLE in text or text in self.before.newest


def _iterate(file, place):
  """Yields the lines (dict) of a file from its place on, which moves on."""
  with contextlib.suppress(OSError), file:
    for text in file:
      if not text.endswith(b'\n'):
        return
      place.first = place.first or text
      place.end += len(text)
      if line := _parse(text):
        place.note(line['time'], text)
        if not place.is_read(line['time'], text):
          yield line


def _read_part(file, size, place, count):
  """Returns lines (list of dict, by time) that stand for those of a large file.

  They are its first and last ones, `count` between, and those of its summary.

  Args:
    file: binary file, at its beginning.
    size: int, bytes.
    place: _Place, which is moved to the end.
    count: int.
  """
  texts, first_end, last_begin = [], _FIRST_BYTES, size - _LAST_BYTES
  place.first = file.readline()
  texts.append(place.first)
  while file.tell() < first_end and (text := file.readline()):
    texts.append(text)
  for i in range(count):
    file.seek(first_end + i * (last_begin - first_end) // count)
    file.readline()  # From the middle of it on.
    texts.append(file.readline())
  file.seek(last_begin)
  file.readline()
  last = file.tell()
  ends = [text for text in file if text.endswith(b'\n')]
  place.end = last + sum(map(len, ends))
  summary = os.path.join(os.path.dirname(file.name), SUMMARY)
  kept = []
  with contextlib.suppress(OSError), open(summary, 'rb') as beside:
    kept = list(beside)
  if kept:  # It has all others, of which these are but some.
    texts = [text for text in texts if _SAMPLE in text]
  found = {}
  for text in [*kept, *texts, *ends]:
    if line := _parse(text):
      place.note(line['time'], text)
      found[line['life'], line['kind'], line['time'], line.get('event')] = line
  return sorted(found.values(), key=lambda line: line['time'])


def read_first_time(path):
  """Returns the time of the first line at `path`, a float, or None."""
  with contextlib.suppress(OSError), open(path, 'rb') as file:
    if line := _parse(file.readline()):
      return line['time']
  return None


_TASK = re.compile(r'launcher|(ps|worker|evaluator) \d{1,7}')
# What a launcher tells of, which may be a part of it, too.
_PART = re.compile(r'(?!(ps|worker|evaluator)\b)\w[\w ]*|' + _TASK.pattern)
# By the year 5138, so that any calendar has it.
_MAX_TIME = 1e11


def _is_number(value):
  return isinstance(value, (int, float)) and math.isfinite(value)


def _is_text(value):
  return isinstance(value, str)


def _are_texts(value):
  return isinstance(value, list) and all(map(_is_text, value))


def _are_parts(value):
  return _are_texts(value) and all(map(_PART.fullmatch, value))


def _are_numbers(value):
  """Whether it is a dict of numbers, or of None for those not finite."""
  return isinstance(value, dict) and all(
    number is None or _is_number(number) for number in value.values()
  )


def _is_histogram(value):
  return _are_numbers(value) and all(
    name.isdecimal() and isinstance(number, int)
    for name, number in value.items()
  )


def _is_process(value):
  return isinstance(value, dict) and isinstance(value.get('pid'), int)


# The fields that something is computed from, and what each has to be unless it
# is None. Others may say what they like.
_FIELDS = {
  'time': lambda value: _is_number(value) and 0 <= value < _MAX_TIME,
  'task': lambda value: _is_text(value) and bool(_TASK.fullmatch(value)),
  'about': lambda value: _is_text(value) and bool(_PART.fullmatch(value)),
  'tasks': _are_parts,
  'waiting': _are_texts,
  'flags': _are_texts,
  'process': _is_process,
  'staleness': _is_histogram,
  'metrics': _are_numbers,
  **dict.fromkeys(
    ('kind', 'life', 'state', 'text', 'unit', 'launch', 'event', 'split'),
    _is_text,
  ),
  **dict.fromkeys(
    (
      *('attempt', 'code', 'cost', 'cpu_cores', 'cpu_secs', 'every_secs'),
      *('examples', 'last_step', 'local_steps', 'rss_bytes', 'step'),
      *('bytes_pulled', 'bytes_pushed', 'received_bytes', 'sent_bytes'),
      *('examples_per_sec', 'received_bytes_per_sec', 'sent_bytes_per_sec'),
      'staleness_mean',
    ),
    _is_number,
  ),
}
# What each line has to have, and each of a kind, or event, besides.
_NEEDED = 'time', 'task', 'life', 'kind'
_NEEDED_BY = {
  'sample': ('state',),
  'end': ('ok', 'text'),
  'event': ('event',),
  'evaluation': ('split', 'metrics'),
  'started': ('about',),
  'ended': ('about', 'code'),
}


def _parse(text):
  """Returns the dict of one line, or None if it is not one of ours.

  The folder is shared: another version, another tool or another user may have
  written there, and what reads the lines relies on their fields.
  """
  try:
    line = json.loads(text)
    needed = [
      *_NEEDED,
      *_NEEDED_BY.get(line['kind'], ()),
      *_NEEDED_BY.get(line.get('event'), ()),
    ]
    if any(line.get(name) is None for name in needed):
      return None
    for name, value in line.items():
      is_right = _FIELDS.get(name)
      if is_right and value is not None and not is_right(value):
        return None
    return line
  except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
    return None


def read(logdir):
  """Returns all lines of all tasks, a list of dict by time."""
  return Follower(logdir).read_new()
