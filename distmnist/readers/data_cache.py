"""Files made once of a user's data, and kept for all tasks of this host.

A CSV file has no place for its row 1,000,000; what is made of it here has. A
file of the cache is named by what it was made of. Whoever needs one that is
missing makes it, under a lock that the kernel frees if its holder is killed;
the others wait for the lock, and then find the file. Where locks do not reach
from host to host, each host makes its own, and the last one stays. A file is
removed only by its name: who has it open reads on.
"""

from __future__ import annotations

import contextlib
import fcntl
import fnmatch
import hashlib
import io
import logging
import os
import secrets
import socket
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO

from absl import flags

from distmnist.common import cli, console, files

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
_DRAFT = 'draft-'
# A maker writes each part that it has read. One that has not for so long hangs.
_HANGS_SECS = 300.0
# Whether another host's maker has ended, nobody here can know; after so long it
# has.
_DEAD_SECS = 86400.0
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
    cli.RunError: the cache cannot be written, or the file is larger than
      --data_cache_gb; cli.PassingError if that may pass, or another process
      hangs that makes one.
    Exception: whatever `make` raises; an OSError must name its file.
  """
  folder = _find_folder()
  name = hashlib.sha256(repr(versions).encode()).hexdigest()[:32] + _ENDING
  path = os.path.join(folder, name)
  try:
    _make_folder(folder)
    if found := _open(path):
      return found
    with _locked(folder) as lock:
      return _open(path) or _make(source, path, make, lock)
  except OSError as error:
    # A write or a lock that fails names no file.
    if error.filename and not f'{error.filename}/'.startswith(f'{folder}/'):
      raise  # One of the user's files.
    raise cli.choose_error(error)(
      f'--data_cache={folder} cannot be used for {source}: '
      f'{error.strerror or error}: give a folder that can be written, on a '
      'disk with room'
    ) from error


def _find_folder() -> str:
  if given := _find_given():
    return os.path.abspath(os.path.expanduser(given))
  return os.path.join(tempfile.gettempdir(), f'distmnist-data-{os.getuid()}')


def _find_given() -> str | None:
  return _FOLDER.value if flags.FLAGS.is_parsed() else None


def _make_folder(folder: str) -> None:
  """Makes the folder if it is absent; the default one is this user's alone."""
  if _find_given():
    os.makedirs(folder, mode=0o700, exist_ok=True)
  else:  # Anyone can predict its name, and prepare it.
    files.make_private(folder)


def _open(path: str) -> BinaryIO | None:
  """Opens a file and notes that it is in use; None if there is none."""
  try:
    file = files.no_follow(path, os.O_RDONLY)
  except FileNotFoundError:
    return None
  with contextlib.suppress(OSError):  # Of another user; on a read-only disk.
    os.utime(file)
  return open(file, 'rb')


@contextlib.contextmanager
def _locked(folder: str) -> Iterator[io.FileIO]:
  """Waits until no other process makes a file in the folder; yields the lock.

  The file of the lock is touched with each write of the one that has it.

  Raises:
    cli.PassingError: the one that does has written nothing for minutes.
  """
  wait, touched = console.Wait(_HANGS_SECS), None
  path = os.path.join(folder, 'lock')
  while True:
    _make_folder(folder)  # Someone may have removed it.
    with open(path, 'a+b', buffering=0, opener=files.no_follow) as lock:
      try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
      except BlockingIOError:
        pass
      else:
        if _is_at(path, lock):  # Else others may lock another one.
          with contextlib.suppress(OSError):  # A full disk: it is for people.
            lock.truncate(0)
            lock.write(b'%d' % os.getpid())
          yield lock
          return
      lock.seek(0)
      who = f'process {lock.read().decode(errors="replace") or "?"}'
      last, touched = touched, os.fstat(lock.fileno()).st_mtime_ns
    if touched != last:
      wait.renew()
    if wait.is_over(f'for {who}, which fills --data_cache={folder}'):
      raise cli.PassingError(
        f'{who}, which fills --data_cache={folder}, has written nothing for '
        f'{_HANGS_SECS:.0f} s: end it, or give another folder'
      )
    time.sleep(wait.choose_pause())


def _is_at(path: str, file: io.FileIO) -> bool:
  try:
    return os.path.samestat(os.stat(path), os.fstat(file.fileno()))
  except FileNotFoundError:
    return False


def _make(
  source: str, path: str, make: Callable[[BinaryIO], None], lock: io.FileIO
) -> BinaryIO:
  """Makes a file, which gets its name when it is whole; needs the lock.

  If the folder is removed meanwhile, the file stays without a name.
  """
  folder, start = os.path.dirname(path), time.monotonic()
  _log.info(f'reading {source} once, into --data_cache={folder}')
  mine = f'{_DRAFT}{socket.gethostname()}-'
  _remove_drafts(folder, mine)
  draft = os.path.join(folder, mine + secrets.token_hex(8))
  try:
    with (
      _Draft(draft, source, lock) as raw,
      io.BufferedWriter(raw, 1 << 20) as file,
    ):
      make(file)
      file.flush()
      os.fsync(raw.fileno())  # Whole, or not there, after a power cut, too.
      with contextlib.suppress(FileNotFoundError):
        os.replace(draft, path)
      secs, size = time.monotonic() - start, file.tell()
      size = f'{size / 1e6:,.1f} MB' if size >= 1e6 else f'{size / 1e3:.0f} kB'
      _log.info(f'read {source} in {secs:.1f} s: {size} in the cache')
      return open(f'/proc/self/fd/{raw.fileno()}', 'rb')
  except BaseException:
    with contextlib.suppress(OSError):
      os.remove(draft)
    raise


def _remove_drafts(folder: str, mine: str) -> None:
  """Removes what killed makers have left: those of this host, which is locked.

  Args:
    folder: the cache.
    mine: how the drafts of this host begin.
  """
  for state, path in _list_files(folder, f'{_DRAFT}*'):
    is_mine = os.path.basename(path).startswith(mine)
    if is_mine or time.time() - state.st_mtime > _DEAD_SECS:
      with contextlib.suppress(FileNotFoundError):
        os.remove(path)


def _list_files(folder: str, name: str) -> list[tuple[os.stat_result, str]]:
  """Returns (state, path) of the files with such a name, the oldest first."""
  found = []
  with contextlib.suppress(FileNotFoundError), os.scandir(folder) as entries:
    for entry in entries:
      if fnmatch.fnmatchcase(entry.name, name):
        with contextlib.suppress(FileNotFoundError):
          found.append((entry.stat(follow_symlinks=False), entry.path))
  return sorted(found, key=lambda one: one[0].st_mtime_ns)


class _Draft(io.FileIO):
  """A file to write, for which older ones of its folder make room."""

  def __init__(self, path: str, source: str, lock: io.FileIO) -> None:
    super().__init__(path, 'x')
    self._folder, self._source = os.path.dirname(path), source
    self._lock = lock
    limit_gb = _MAX_GB.value if flags.FLAGS.is_parsed() else _MAX_GB.default
    self._max_bytes = int(limit_gb * 1e9)
    self._size = self._others = 0
    self._make_room()

  def write(self, data: Any) -> int:
    if self._size + len(data) + self._others > self._max_bytes:
      self._make_room(len(data))
    written = self._write_to_disk(data)
    self._size += written
    os.utime(self._lock.fileno())
    return written

  def _write_to_disk(self, data: Any) -> int:
    """Writes some bytes; on a full disk, the oldest files go one by one.

    Raises:
      OSError: no other file is left, or the disk fails.
    """
    while True:
      try:
        return super().write(data)
      except OSError as error:
        if error.errno not in files.FULL:
          raise
        others = _list_files(self._folder, f'*{_ENDING}')
        if not others:
          raise
      self._remove(*others[0])

  def _make_room(self, num_bytes: int = 0) -> None:
    """Removes files for some more bytes, the one opened longest ago first.

    Raises:
      cli.RunError: without the others, too, the file is too large.
    """
    others = _list_files(self._folder, f'*{_ENDING}')
    self._others = sum(state.st_size for state, _ in others)
    wanted = self._size + num_bytes
    for state, path in others:
      if wanted + self._others <= self._max_bytes:
        return
      self._remove(state, path)
    if wanted > self._max_bytes:
      raise cli.RunError(
        f'{self._source} takes more than --data_cache_gb='
        f'{self._max_bytes / 1e9:g} in --data_cache={self._folder}: allow more'
      )

  def _remove(self, state: os.stat_result, path: str) -> None:
    with contextlib.suppress(FileNotFoundError):
      os.remove(path)
    self._others -= state.st_size
