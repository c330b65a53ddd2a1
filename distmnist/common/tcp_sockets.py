"""The internet sockets that this process has open, TensorFlow's among them."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator


def find() -> Iterator[tuple[str, socket.socket]]:
  """Yields (inode, socket) of each; nothing if there is no /proc.

  Each socket has a descriptor of its own, so closing it leaves the one in use
  open; it is closed when the next one is asked for.
  """
  folder = '/proc/self/fd'
  for name in os.listdir(folder) if os.path.isdir(folder) else ():
    try:
      inode = os.readlink(f'{folder}/{name}')
      if not inode.startswith('socket:'):
        continue
      found = _open(os.dup(int(name)))
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
