"""A temporary folder of this process, for copies and drafts.

It is removed when the process ends. The next process removes what a killed one
has left: the kernel releases the lock in a folder when its process ends.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import glob
import os
import shutil
import tempfile

_LOCK = 'lock'
# Process id -> (path, descriptor of the lock): a fork has its own.
_mine: dict[int, tuple[str, int]] = {}


def folder() -> str:
  """Returns the path of the folder of this process."""
  pid = os.getpid()
  if pid not in _mine:
    _remove_left()
    while (made := _make_locked()) is None:
      pass
    _mine[pid] = made
    atexit.register(remove)
  return _mine[pid][0]


def _make_locked() -> tuple[str, int] | None:
  """Returns (path, descriptor of the lock) of a new folder.

  None if another process found it before it was locked: it seemed to be left,
  and is removed.
  """
  path = tempfile.mkdtemp(prefix=_prefix())
  lock = os.path.join(path, _LOCK)
  descriptor = os.open(lock, os.O_CREAT | os.O_RDWR)
  fcntl.flock(descriptor, fcntl.LOCK_EX)
  if os.path.exists(lock):
    return path, descriptor
  os.close(descriptor)
  return None


def make(prefix: str) -> str:
  """Returns the path of a new folder in it."""
  return tempfile.mkdtemp(prefix=f'{prefix}_', dir=folder())


def remove() -> None:
  """Removes the folder of this process, if it has one."""
  mine = _mine.pop(os.getpid(), None)
  if mine:
    path, descriptor = mine
    shutil.rmtree(path, ignore_errors=True)
    os.close(descriptor)


def _prefix() -> str:
  return f'distmnist_scratch_{os.getuid()}_'


def _remove_left() -> None:
  """Removes the folders of this user's processes that have ended."""
  pattern = os.path.join(glob.escape(tempfile.gettempdir()), f'{_prefix()}*')
  for path in glob.glob(pattern):
    with contextlib.suppress(OSError):
      if os.lstat(path).st_uid != os.getuid():
        continue
      descriptor = os.open(os.path.join(path, _LOCK), os.O_RDWR)
      try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(path, ignore_errors=True)
      finally:
        os.close(descriptor)
