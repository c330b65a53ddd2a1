"""Files made once of a user's data, and kept for all tasks of this host.

A CSV file has no place for its row 1,000,000; what is made of it here has. A
file of the cache is named by what it was made of. Whoever needs one that is
missing makes it, under a lock that the kernel frees if its holder is killed;
the others wait for the lock, and then find the file. A file is removed only by
its name: who has it open reads on.
"""

import contextlib
import fcntl
import hashlib
import io
import logging
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import BinaryIO

from absl import flags

from distmnist.common import cli, console

_FOLDER = flags.DEFINE_string(
  'data_cache',
  None,
  'Folder in which the readers of CSV, Parquet and compressed files keep what '
  'they make of them once: a file that all tasks of a host read by row. By '
  'default distmnist-data-UID in $TMPDIR, or in /tmp.',
)
_MAX_GB = flags.DEFINE_float(
  'data_cache_gb',
  100,
  'Gigabytes that --data_cache may take: the files that were opened longest '
  'ago go first.',
  lower_bound=0.001,
)
_ENDING = '.rows'
_DRAFT = 'draft'
# A maker writes several times a second. One that has not for so long hangs.
_HANGS_SECS = 300.0
_log = logging.getLogger(__name__)


def fetch(
  source: str, versions: object, make: Callable[[BinaryIO], None]
) -> BinaryIO:
  """Returns a file of the cache, open to be read; makes it if it is missing.

  Args:
    source: what it is made of, for people.
    versions: what its content depends on; its repr tells it from others.
    make: writes the content into the file that it is given.

  Raises:
    cli.RunError: the cache cannot be written, the file is larger than
      --data_cache_gb, or another process hangs that makes one.
    Exception: whatever `make` raises.
  """
  folder = _find_folder()
  name = hashlib.sha256(repr(versions).encode()).hexdigest()[:32] + _ENDING
  path = os.path.join(folder, name)
  try:
    os.makedirs(folder, mode=0o700, exist_ok=True)
    if found := _open(path):
      return found
    with _locked(folder):
      return _open(path) or _make(source, path, make)
  except OSError as error:
    # A write or a lock that fails names no file.
    if error.filename and not str(error.filename).startswith(folder):
      raise  # One of the user's files.
    raise cli.choose_error(error)(
      f'--data_cache={folder} cannot be used for {source}: '
      f'{error.strerror or error}: give a folder that can be written, on a '
      'disk with room'
    ) from error


def _find_folder() -> str:
  given = _FOLDER.value if flags.FLAGS.is_parsed() else None
  if given:
    return os.path.abspath(os.path.expanduser(given))
  return os.path.join(tempfile.gettempdir(), f'distmnist-data-{os.getuid()}')


def _open(path: str) -> BinaryIO | None:
  """Opens a file and notes that it is in use; None if there is none."""
  try:
    with contextlib.suppress(PermissionError):  # It is another user's.
      os.utime(path)
    return open(path, 'rb')
  except FileNotFoundError:
    return None


@contextlib.contextmanager
def _locked(folder: str) -> Iterator[None]:
  """Waits until no other process makes a file in the folder.

  Raises:
    cli.RunError: the one that does has written nothing for minutes.
  """
  wait, written = console.Wait(_HANGS_SECS), None
  with open(os.path.join(folder, 'lock'), 'a+', encoding='utf-8') as lock:
    while True:
      try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        break
      except BlockingIOError:
        lock.seek(0)
        who = f'process {lock.read() or "?"}'
      if (now := _measure(os.path.join(folder, _DRAFT))) != written:
        written = now
        wait.renew()
      if wait.is_over(f'for {who}, which fills --data_cache={folder}'):
        raise cli.RunError(
          f'{who}, which fills --data_cache={folder}, has written nothing for '
          f'{_HANGS_SECS:.0f} s: end it, or give another folder'
        )
      time.sleep(wait.choose_pause())
    lock.truncate(0)
    lock.write(str(os.getpid()))
    lock.flush()
    yield


def _measure(path: str) -> tuple[int, int] | None:
  try:
    found = os.stat(path)
    return found.st_size, found.st_mtime_ns
  except FileNotFoundError:
    return None


def _make(source: str, path: str, make: Callable[[BinaryIO], None]) -> BinaryIO:
  """Makes a file, which gets its name when it is whole; needs the lock."""
  folder, start = os.path.dirname(path), time.monotonic()
  _log.info(f'reading {source} once, into --data_cache={folder}')
  # One that a killed maker has left is written anew.
  draft = os.path.join(folder, _DRAFT)
  try:
    with _Draft(draft, source) as raw, io.BufferedWriter(raw, 1 << 20) as file:
      make(file)
      file.flush()
      os.fsync(raw.fileno())  # Whole, or not there, after a power cut, too.
    os.replace(draft, path)
  except BaseException:
    with contextlib.suppress(OSError):
      os.remove(draft)
    raise
  secs, size = time.monotonic() - start, os.path.getsize(path)
  _log.info(f'read {source} in {secs:.1f} s: {size / 1e6:,.1f} MB to train on')
  return open(path, 'rb')


class _Draft(io.FileIO):
  """A file to write, for which older ones of its folder make room."""

  def __init__(self, path: str, source: str):
    super().__init__(path, 'w')
    self._folder, self._source = os.path.dirname(path), source
    limit_gb = _MAX_GB.value if flags.FLAGS.is_parsed() else _MAX_GB.default
    self._max_bytes = int(limit_gb * 1e9)
    self._size = self._others = 0
    self._make_room()

  def write(self, data) -> int:
    if self._size + len(data) + self._others > self._max_bytes:
      self._make_room(len(data))
    written = super().write(data)
    self._size += written
    return written

  def _make_room(self, num_bytes: int = 0) -> None:
    """Removes files for some more bytes, the one opened longest ago first.

    Raises:
      cli.RunError: without the others, too, the file is too large.
    """
    with os.scandir(self._folder) as entries:
      states = [(e.stat(), e.path) for e in entries if e.name.endswith(_ENDING)]
    states.sort(key=lambda state: state[0].st_mtime_ns)
    self._others = sum(state.st_size for state, _ in states)
    wanted = self._size + num_bytes
    for state, path in states:
      if wanted + self._others <= self._max_bytes:
        return
      with contextlib.suppress(FileNotFoundError):
        os.remove(path)
      self._others -= state.st_size
    if wanted > self._max_bytes:
      raise cli.RunError(
        f'{self._source} takes more than --data_cache_gb='
        f'{self._max_bytes / 1e9:g} in --data_cache={self._folder}: allow more'
      )
