"""Writes files on this machine, in folders where others may write as well.

A file appears whole or not at all, and a link that somebody has put in its
place is replaced, never followed. The folder may be one that hosts share, also
over NFS.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
from collections.abc import Iterator
from typing import IO

from distmnist.storage import process_tag

ABANDONED_SECS = 600.0
# What `_name_draft` returns, with the tag of the process; no file of a user's.
_DRAFT = re.compile(r'.+\.([0-9a-f]{8}-\d+-\w+)-[0-9a-f]{8}\.new')
_NO_LINKS = errno.EPERM, errno.ENOTSUP, errno.ENOSYS


@contextlib.contextmanager
def replacing(path: str, mode: str = 'w') -> Iterator[IO]:
  """Yields a new file that replaces `path` at the end.

  If the block raises, what was at `path` stays as it was. The content is on
  disk before it gets the name, so a power cut leaves the old file or the new
  one.

  Args:
    mode: 'w' for UTF-8 text, whose line ends stay as they are, or 'wb'.

  Raises:
    OSError: it cannot be written.
  """
  # Next to `path`, as a rename has to stay on one file system.
  new = _name_draft(path)
  is_text = 'b' not in mode
  try:
    # With O_EXCL, which follows no link.
    with open(
      new,
      mode.replace('w', 'x'),
      encoding='utf-8' if is_text else None,
      newline='' if is_text else None,
    ) as file:
      yield file
      file.flush()
      os.fsync(file.fileno())
    os.replace(new, path)
  except BaseException as error:
    with contextlib.suppress(OSError):
      os.remove(new)
    if isinstance(error, OSError) and error.filename is None:
      error.filename = path  # A write or flush that fails names none.
    raise


def create(path: str, content: bytes) -> bool:
  """Makes a file if there is none, whole and on disk; returns whether it did.

  Of two processes that do it at once, also over NFS, only one succeeds.

  Raises:
    OSError: it cannot be written.
  """
  new = _name_draft(path)
  try:
    with open(new, 'xb') as file:
      file.write(content)
      file.flush()
      os.fsync(file.fileno())
    return _link(new, path)
  finally:
    with contextlib.suppress(OSError):
      os.remove(new)


def _name_draft(path: str) -> str:
  """Returns a name that nobody can guess, and that says who writes there."""
  return f'{path}.{process_tag.make_tag()}-{secrets.token_hex(4)}.new'


def _link(new: str, path: str) -> bool:
  """Gives the file `new` the name `path`, too, if nothing has that name."""
  try:
    os.link(new, path)
    return True
  except FileExistsError:
    # NFS says so, too, if the first answer to our own request was lost.
    try:
      return os.path.samefile(new, path)
    except FileNotFoundError:  # Gone by now.
      return False
  except OSError as error:
    if error.errno not in _NO_LINKS:
      raise
  # A file system without hard links.
  try:
    with open(new, 'rb') as source, open(path, 'xb') as file:
      file.write(source.read())
    return True
  except FileExistsError:
    return False


def see_now(folder: str) -> float:
  """Returns the time in s since 1970 by the clock of a folder's file server.

  Raises:
    OSError: nothing can be written there.
  """
  new = _name_draft(os.path.join(folder, 'time'))
  try:
    with open(new, 'xb') as file:
      # On NFS it is the server that gives a time to what is written.
      file.write(b'.')
      file.flush()
      os.fsync(file.fileno())
      return os.fstat(file.fileno()).st_mtime
  finally:
    with contextlib.suppress(OSError):
      os.remove(new)


def remove_abandoned(folder: str) -> None:
  """Removes the drafts that processes left in a folder when they were killed.

  Other processes may write there meanwhile. Of a process of another machine
  nothing is known: its draft counts as left once it has not changed for
  ABANDONED_SECS.
  """
  now = None
  for name in os.listdir(folder):
    if not (match := _DRAFT.fullmatch(name)):
      continue
    path = os.path.join(folder, name)
    is_dead = process_tag.is_tag_dead(match[1])
    # It may be finished, and gone, by now; or another user's.
    with contextlib.suppress(OSError):
      if is_dead is None:
        now = now or see_now(folder)
        is_dead = now - os.stat(path).st_mtime > ABANDONED_SECS
      if is_dead:
        os.remove(path)
