"""The internet sockets that a process has open, TensorFlow's among them."""

from __future__ import annotations

import ctypes
import os
import socket
from collections.abc import Iterator

_SYS_PIDFD_GETFD = 438


def find(pid: int | None = None) -> Iterator[tuple[str, socket.socket]]:
  """Yields (inode, socket) of each; nothing if there is no /proc.

  Each socket has a descriptor of its own, so closing it leaves the process's
  own open; it is closed when the next one is asked for.

  Args:
    pid: of a process that we may trace; None for this one.
  """
  folder = f'/proc/{pid or "self"}/fd'
  for name in os.listdir(folder) if os.path.isdir(folder) else ():
    try:
      inode = os.readlink(f'{folder}/{name}')
      if not inode.startswith('socket:'):
        continue
      found = _open(_duplicate(pid, int(name)))
    except OSError:
      continue  # It was closed meanwhile, and may be something else by now.
    with found:
      if found.family in (socket.AF_INET, socket.AF_INET6):
        yield inode, found


def _open(fd: int) -> socket.socket:
  """Returns the socket of a descriptor, which is closed if it is of none."""
  try:
    return socket.socket(fileno=fd)
  except OSError:
    os.close(fd)
    raise


def _duplicate(pid: int | None, fd: int) -> int:
  """Returns our own duplicate of a process's descriptor."""
  if pid is None:
    return os.dup(fd)
  process = os.pidfd_open(pid)
  try:
    libc = ctypes.CDLL(None, use_errno=True)
    copy = libc.syscall(_SYS_PIDFD_GETFD, process, fd, 0)
  finally:
    os.close(process)
  if copy == -1:
    number = ctypes.get_errno()
    raise OSError(number, os.strerror(number), 'pidfd_getfd')
  return copy
