"""Files in folders where others may write as well, and folders of one's own."""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import stat
from collections.abc import Iterator
from typing import IO, Any

from distmnist.storage import copies, disk, paths, urls

_log = logging.getLogger(__name__)

# What a write to a full disk fails with.
FULL = errno.ENOSPC, errno.EDQUOT
_NOT_WRITABLE = errno.EROFS, errno.EACCES, errno.EPERM


@contextlib.contextmanager
def replacing(path: str, mode: str = 'w') -> Iterator[IO]:
  """Yields a new file that replaces `path` at the end, whole or not at all.

  Args:
    path: for an address, the file is written here first and then uploaded.
    mode: 'w' for UTF-8 text, whose line ends stay as they are, or 'wb'.

  Raises:
    OSError: it cannot be written.
  """
  with copies.drafting(path) as draft, disk.replacing(draft, mode) as file:
    yield file


def read_dict(path: str) -> dict[str, Any]:
  """Returns the dict of a JSON file; {} if it is not there, or damaged."""
  try:
    found = json.loads(paths.read_text(path))
  except (OSError, ValueError):
    return {}
  return found if isinstance(found, dict) else {}


def find_obstacle(path: str) -> str | None:
  """Returns why no file can be written at a path, or None."""
  folder = os.path.dirname(path) or os.curdir
  if os.path.isdir(path):
    return 'it is a folder'
  if not os.path.isdir(folder):
    return f'there is no folder {folder}'
  if not os.access(folder, os.W_OK):
    return f'{folder} is not yours to write to'
  return None


def is_full(folder: str | os.PathLike[str]) -> bool:
  """Whether nothing more can be written to the disk of a local folder."""
  try:
    found = os.statvfs(folder)
  except OSError:
    return False
  # Some file systems, such as /proc, count no blocks at all.
  return bool(found.f_blocks) and not found.f_bavail


def describe_refusal(error: OSError, who: str) -> str:
  """Returns the reason of an OSError of a write, and what to do.

  Args:
    error: what the write failed with.
    who: what to do if the folder is another user's.
  """
  what = 'make room there' if error.errno in FULL else who
  return f'{error.strerror}; {what}'


def no_follow(path: str | os.PathLike[str], flags: int) -> int:
  """For open(opener=no_follow): raises OSError if `path` itself is a link."""
  try:
    return os.open(path, flags | os.O_NOFOLLOW, 0o666)
  except OSError as error:
    if error.errno == errno.ELOOP:  # Linux speaks of many levels of links.
      error.strerror = 'It is a link, which is not followed'
    raise


def advise(reason: str) -> str:
  """Returns what to do about a write to the logdir that failed.

  Args:
    reason: with the system's words for the error.
  """
  remedies = dict.fromkeys(FULL, 'make room there, or ')
  remedies |= dict.fromkeys(_NOT_WRITABLE, 'make it writable, or ')
  found = [what for n, what in remedies.items() if os.strerror(n) in reason]
  return f'{"".join(found[:1])}give another --logdir'


@contextlib.contextmanager
def private_file(path: str, text: str) -> Iterator[None]:
  """Keeps a file at `path`, for this user alone, until the context ends."""
  with contextlib.suppress(FileNotFoundError):
    os.remove(path)
  fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
  try:
    with open(fd, 'w', encoding='utf-8') as file:
      file.write(text)
    yield
  finally:
    os.remove(path)


def make_private(folder: str) -> None:
  """Makes a folder that this user alone can read and write, if it is absent.

  Raises:
    PermissionError: it exists, but is a link, is not a folder, belongs to
      another user, or lets others write to it.
    OSError: it cannot be made.
  """
  with contextlib.suppress(FileExistsError):
    os.mkdir(folder, 0o700)
  found = os.lstat(folder)
  problem = None
  if stat.S_ISLNK(found.st_mode):
    problem = 'is a link'
  elif not stat.S_ISDIR(found.st_mode):
    problem = 'is not a folder'
  elif found.st_uid != os.geteuid():
    problem = f'belongs to another user (uid {found.st_uid})'
  elif found.st_mode & 0o022:
    problem = f'lets others write to it (mode {found.st_mode & 0o777:o})'
  if problem:
    raise PermissionError(f'{folder} {problem}')


def warn_of_owner(name: str, folder: str) -> None:
  """Warns if the folder of a flag belongs to another user, except root.

  Args:
    name: the flag.
    folder: exists; an address is skipped: its owners are of another kind.
  """
  if other := find_other_owner(folder):
    _log.info(
      f'--{name}={folder} belongs to another user (uid {other[1]}), who can '
      'change all that is in it'
    )


def find_other_owner(*paths: str) -> tuple[str, int] | None:
  """Returns the first path of another user's, and who that is.

  A link has two owners: its own, and that of the file it leads to. What is not
  there is skipped, as are addresses: their owners are of another kind.

  Returns:
    (path, uid); None if all are this user's or root's.
  """
  for path in paths:
    if urls.is_remote(path):
      continue
    for look in (os.lstat, os.stat):
      with contextlib.suppress(FileNotFoundError):
        uid = look(path).st_uid
        if uid not in (os.geteuid(), 0):
          return path, uid
  return None


def sync(path: str) -> None:
  """Makes sure that a file, or the names in a folder, are on disk.

  Raises:
    OSError: they are not.
  """
  number = os.open(path, os.O_RDONLY)
  try:
    os.fsync(number)
  finally:
    os.close(number)


def read_json(path: str) -> Any:
  """Returns the content of the file `path`; raises OSError or ValueError."""
  with open(path, encoding='utf-8') as file:
    return json.load(file)


def write_json(path: str, value: Any) -> None:
  """Writes `value` to the file `path`, whole or not at all."""
  with replacing(path) as file:
    json.dump(value, file, indent=2)
    file.write('\n')
