"""Bytes moved by the sockets of this process: one count for all callers."""

import os
import threading
import weakref

from distmnist.watching import socket_bytes

# The last bytes of a socket that closes between two looks are not counted.
_LOOK_SECS = 0.25
_shared = weakref.WeakValueDictionary()  # Process id: its counter.


class Meter:
  """What this process has moved since the meter was made."""

  def __init__(self):
    pid = os.getpid()  # A fork does not inherit threads.
    self._counter = _shared.get(pid) or _Counter()
    _shared[pid] = self._counter
    self._first = self._counter.read() or (0, 0)

  def read(self):
    """Returns (bytes sent, bytes received).

    None where the system does not count, and until a socket has been seen.
    """
    counts = self._counter.read()
    if counts is None:
      return None
    return tuple(
      n - first for n, first in zip(counts, self._first, strict=True)
    )


class _Counter:
  """Looks at all sockets, in a thread of its own that ends with it."""

  def __init__(self):
    self._sockets = socket_bytes.SocketBytes()
    self._lock = threading.Lock()
    self.read()
    is_closed = threading.Event()
    weakref.finalize(self, is_closed.set)
    threading.Thread(
      target=_look_on, args=(weakref.ref(self), is_closed), daemon=True
    ).start()

  def read(self):
    with self._lock:
      self._sockets.look()
      return self._sockets.read()


def _look_on(find_counter, is_closed):
  while not is_closed.wait(_LOOK_SECS):
    if counter := find_counter():
      counter.read()
    counter = None  # Referenced only during a look.
