"""The files that a reader reads."""

from __future__ import annotations

import contextlib
import fnmatch
import glob
import hashlib
import os
import zlib
from collections.abc import Iterable, Iterator, Sequence

from distmnist.storage import copies, urls
from distmnist.storage import paths as storage_paths

# How much tells one content from another: of a file, and of many files.
_SAMPLE_BYTES = 1 << 12
_NUM_SAMPLED = 64
_Path = str | os.PathLike[str]
Pattern = _Path | Iterable[_Path]


def find(pattern: Pattern) -> list[str]:
  """Returns the paths that a pattern names, sorted.

  Args:
    pattern: such as 'data/train-*.tfrecord', or several.
      Files of a store, such as 's3://bucket/train-*.tfrecord', are copied here;
      for them, only the last part of the address may be a pattern.

  Raises:
    ValueError: there is no pattern, one names no file, or a file cannot be
      copied here.
  """
  found: list[str] = []
  is_one = isinstance(pattern, (str, os.PathLike))
  for given in [pattern] if is_one else pattern:
    one = os.fspath(given)
    if urls.is_remote(one):
      paths = _fetch(one)
    else:
      expanded = os.path.expanduser(one)
      # A name may have brackets of its own.
      names = [expanded] if os.path.isfile(expanded) else glob.glob(expanded)
      paths = sorted(filter(os.path.isfile, names))
    if not paths:
      is_folder = not urls.is_remote(one) and os.path.isdir(expanded)
      what = (
        f'a folder: give files, as {one}/*' if is_folder else 'no such file'
      )
      raise ValueError(f'{one}: {what}')
    found += paths
  if not found:
    raise ValueError('no file was given: expected a pattern or a list of them')
  return found


def _fetch(pattern: str) -> list[str]:
  folder, name = pattern.rsplit('/', 1)
  try:
    names = storage_paths.list_files(folder)
    # As on this machine: a name may have brackets, and * fits no hidden file.
    if name in names:
      names = [name]
    else:
      found = fnmatch.filter(names, name)
      names = [n for n in found if name.startswith('.') or n[0] != '.']
    return [copies.fetch_file(f'{folder}/{n}') for n in sorted(names)]
  except OSError as error:
    raise ValueError(f'{pattern}: {error.strerror}') from error


def identify(paths: Iterable[str]) -> bytes:
  """Returns bytes that tell these files from others.

  By all names and sizes, and by how some of the files begin and end: to open
  each of a million images would take minutes.
  """
  sizes = [(path, os.path.getsize(path)) for path in paths]
  text = repr([(os.path.basename(path), size) for path, size in sizes])
  checksum = zlib.crc32(text.encode())
  for path, size in sizes[:: -(-len(sizes) // _NUM_SAMPLED)]:
    with open(path, 'rb') as file:
      checksum = zlib.crc32(sample(file.fileno(), size), checksum)
  return b'%08x' % checksum


def sample(descriptor: int, size: int) -> bytes:
  """Returns the first and last bytes of the first `size` of an open file."""
  last = max(0, size - _SAMPLE_BYTES)
  return b''.join(
    os.pread(descriptor, min(size, _SAMPLE_BYTES), offset)
    for offset in (0, last)
  )


def find_version(path: str) -> tuple:
  """Returns what changes when a file does.

  A copy of a file in a store is told by its content: each task has its own.
  """
  if not copies.is_copy(path):
    return (os.path.realpath(path), *_read_state(os.stat(path)))
  found = hashlib.blake2b()
  with open(path, 'rb') as file:
    while part := file.read(1 << 20):
      found.update(part)
  return os.path.basename(path), found.hexdigest()


def describe(paths: Sequence[str]) -> str:
  """Returns a word for these files."""
  more = f' and {len(paths) - 1} more' if len(paths) > 1 else ''
  return f'{paths[0]}{more}'


class KnownFile:
  """A file that may grow, but must begin with what it had at the start."""

  def __init__(self, path: str, size: int) -> None:
    """
    Args:
      path: the file.
      size: how many of its first bytes must stay.
    """
    self._path = path
    self._size = size
    with opened(path) as file:
      self._state = _read_state(os.fstat(file))
      self._sample = sample(file, self._size)

  def check(self, file: int) -> None:
    """Raises ValueError if the open `file` is no longer what it was."""
    state = _read_state(os.fstat(file))
    if state == self._state:
      return
    # Lines that came or went in its middle have moved its end.
    if sample(file, self._size) != self._sample:
      raise self.explain()
    self._state = state

  def explain(self) -> ValueError:
    return ValueError(f'{self._path} has changed since the training began')


def _read_state(found: os.stat_result) -> tuple[int, int, int]:
  """Returns what changes with each write to a file, or if it is replaced."""
  return found.st_ino, found.st_mtime_ns, found.st_size


@contextlib.contextmanager
def naming(path: str) -> Iterator[None]:
  """Has an error of the system name its file: one of a read names none.

  A library's own OSError, which has no number, stays as it is.
  """
  try:
    yield
  except OSError as error:
    if error.errno:
      error.filename = error.filename or path
    raise


@contextlib.contextmanager
def opened(path: str) -> Iterator[int]:
  """Yields the descriptor of a file, opened to be read."""
  file = os.open(path, os.O_RDONLY)
  try:
    with naming(path):
      yield file
  finally:
    os.close(file)
