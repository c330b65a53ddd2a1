"""metrics.jsonl: what a task reports about itself, one JSON object a line.

Each task has its own, LOGDIR/TASK/metrics.jsonl, which all its lives append to.
metrics.schema.json defines the fields. A line is written whole or not at all,
in one write; one that cannot be written does not end the training.
"""

import contextlib
import glob
import heapq
import io
import json
import logging
import math
import os
import re
import time

from distmnist.common import files
from distmnist.storage import mirror, urls
from distmnist.storage import paths as storage_paths

_log = logging.getLogger(__name__)

NAME = 'metrics.jsonl'
LAUNCHER = 'launcher'


def folder_of(logdir, task):
  """Returns the folder of a task such as 'ps 0': LOGDIR/ps_0."""
  return os.path.join(logdir, task.replace(' ', '_'))


def path_of(logdir, task):
  return os.path.join(folder_of(logdir, task), NAME)


def find(logdir):
  """Returns {task name: path} of the files in `logdir`."""
  if urls.is_remote(logdir):
    folders = storage_paths.list_names(logdir)
    paths = [os.path.join(logdir, folder, NAME) for folder in folders]
  else:
    paths = glob.glob(os.path.join(glob.escape(logdir), '*', NAME))
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
    self.path = os.path.join(mirror.localize(folder_of(logdir, task)), NAME)
    self._own = {'task': task, 'life': life}
    self._start = {'kind': 'start', 'time': time.time(), **start}
    self._has_failed = False

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
    if not urls.is_remote(self._logdir) and not os.path.isdir(self._logdir):
      return
    lines = [line]
    # The file may have been moved away: each new one gets a start line.
    if self._start and not self._is_begun():
      lines.insert(0, self._start)
    text = ''.join(
      json.dumps(clean(self._own | x, _shorten)) + '\n' for x in lines
    )
    os.makedirs(os.path.dirname(self.path), exist_ok=True)
    _append_whole(self.path, text.encode())
    self._inode = os.stat(self.path).st_ino

  _inode = None

  def _is_begun(self):
    try:
      return os.stat(self.path).st_ino == self._inode
    except FileNotFoundError:
      return False


def _append_whole(path, data):
  """Appends `data` to a file, all of it or nothing.

  Raises:
    OSError: it cannot be written.
  """
  flags = os.O_RDWR | os.O_APPEND | os.O_CREAT
  fd = files.no_follow(path, flags)
  try:
    size = os.fstat(fd).st_size
    # The write before ours may have been cut off.
    if size and os.pread(fd, 1, size - 1) != b'\n':
      data = b'\n' + data
    if os.write(fd, data) < len(data):
      os.ftruncate(fd, size)
      raise OSError(0, 'no space is left')
  finally:
    os.close(fd)


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
      clock of the file server; without files in a store.
    has_lost: bool, whether the last `read_new` found a file gone, moved aside
      with an earlier run, say: its lines count no more.
  """

  def __init__(self, logdir):
    self._logdir = logdir
    self.written, self.has_lost = {}, False
    self._places = {}  # Path: (inode, bytes read).

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
        found.append(self._iterate(path, self._open(task, path)))
    return heapq.merge(*found, key=lambda line: line['time'])

  def _open(self, task, path):
    """Returns a binary file, at the first line of `path` that is not read."""
    old, start = self._places.get(path, (None, 0))
    if urls.is_remote(path):
      file = io.BytesIO(storage_paths.read_bytes(path))
      inode = old
    else:
      file = open(path, 'rb')  # noqa: SIM115 (closed when it is used up)
      status = os.fstat(file.fileno())
      inode, self.written[task] = status.st_ino, status.st_mtime
      if old not in (None, inode) or status.st_size < start:
        self.has_lost, start = True, 0
    self._places[path] = inode, start
    file.seek(start)
    return file

  def _iterate(self, path, file):
    with contextlib.suppress(OSError), file:
      for text in file:
        if not text.endswith(b'\n'):
          return
        inode, start = self._places[path]
        self._places[path] = inode, start + len(text)
        if line := _parse(text):
          yield line


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


def iterate(logdir):
  """Returns an iterator over all lines of all tasks, dicts by time."""
  return Follower(logdir).iterate_new()


def read(logdir):
  """Returns all lines of all tasks, a list of dict by time."""
  return Follower(logdir).read_new()
