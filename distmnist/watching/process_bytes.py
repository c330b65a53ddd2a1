"""The bytes that this process moved on its sockets, as the kernel counts them.

One count serves all callers.
"""

from __future__ import annotations

import os
import socket
import struct
import threading
import weakref
from collections.abc import Callable, Iterator

from distmnist.common import tcp_sockets

# The last bytes of a socket that closes between two looks are not counted.
_LOOK_SECS = 0.25
# By process id.
_shared: weakref.WeakValueDictionary[int, _Counter] = (
  weakref.WeakValueDictionary()
)
# In Linux's struct tcp_info: tcpi_bytes_acked and tcpi_bytes_received.
_OFFSET, _SIZE = 120, 136


class Meter:
  """What this process has moved since the meter was made."""

  def __init__(self) -> None:
    pid = os.getpid()  # A fork does not inherit threads.
    self._counter = _shared.get(pid) or _Counter()
    _shared[pid] = self._counter
    self._first = self._counter.read() or (0, 0)

  def read(self) -> tuple[int, int] | None:
    """Returns (bytes sent, bytes received).

    None where the system does not count, and until a socket has been seen.
    """
    counts = self._counter.read()
    if counts is None:
      return None
    return counts[0] - self._first[0], counts[1] - self._first[1]


class _Counter:
  """Looks at all sockets, in a thread of its own that ends with it."""

  def __init__(self) -> None:
    self._sockets = SocketBytes()
    self._lock = threading.Lock()
    self.read()
    is_closed = threading.Event()
    weakref.finalize(self, is_closed.set)
    threading.Thread(
      name='process bytes',
      target=_look_on,
      args=(weakref.ref(self), is_closed),
      daemon=True,
    ).start()

  def read(self) -> tuple[int, int] | None:
    with self._lock:
      self._sockets.look()
      return self._sockets.read()


def _look_on(
  find_counter: Callable[[], _Counter | None], is_closed: threading.Event
) -> None:
  while not is_closed.wait(_LOOK_SECS):
    if counter := find_counter():
      counter.read()
    counter = None  # Referenced only during a look.


class SocketBytes:
  """Counts what the TCP sockets of this process have sent and received.

  Counts run from the first look to the last one at each socket. Look often:
  what a socket moves between its last look and its closing is not counted.
  """

  def __init__(self) -> None:
    self._has_looked = False
    # By inode.
    self._first: dict[str, tuple[int, int]] = {}
    self._last: dict[str, tuple[int, int]] = {}

  def look(self) -> None:
    """Reads all sockets; does nothing where the system has no such counts."""
    for inode, counts in _read_sockets():
      # A socket opened since the first look moved all of its bytes since then.
      self._first.setdefault(inode, (0, 0) if self._has_looked else counts)
      self._last[inode] = counts
    self._has_looked = True

  def read(self) -> tuple[int, int] | None:
    """Returns (bytes sent, bytes received); None before a look found any."""
    if not self._last:
      return None
    sent, received = (
      sum(self._last[inode][i] - self._first[inode][i] for inode in self._last)
      for i in (0, 1)
    )
    return sent, received


def _read_sockets() -> Iterator[tuple[str, tuple[int, int]]]:
  """Yields (inode, (bytes sent, bytes received)) of each open TCP socket."""
  if not hasattr(socket, 'TCP_INFO'):
    return
  for inode, found in tcp_sockets.find():
    try:
      info = found.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _SIZE)
    except OSError:
      continue  # Not a TCP socket.
    if len(info) == _SIZE:
      yield inode, struct.unpack_from('QQ', info, _OFFSET)
