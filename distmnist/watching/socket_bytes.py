"""The bytes that a process actually moved, as counted by the kernel."""

import socket
import struct

from distmnist.common import tcp_sockets

# In Linux's struct tcp_info: tcpi_bytes_acked and tcpi_bytes_received.
_OFFSET, _SIZE = 120, 136


class SocketBytes:
  """Counts what the TCP sockets of a process have sent and received.

  Counts run from the first look to the last one at each socket. Look often:
  what a socket moves between its last look and its closing is not counted.
  """

  def __init__(self, pid=None):
    """
    Args:
      pid: int, a process that we may trace; None for this one.
    """
    self._pid = pid
    self._has_looked = False
    self._first = {}
    self._last = {}

  def look(self):
    """Reads all sockets; does nothing where the system has no such counts."""
    for inode, counts in _read_sockets(self._pid):
      # A socket opened since the first look moved all of its bytes since then.
      self._first.setdefault(inode, (0, 0) if self._has_looked else counts)
      self._last[inode] = counts
    self._has_looked = True

  def read(self):
    """Returns (bytes sent, bytes received); None before a look found any."""
    if not self._last:
      return None
    return tuple(
      sum(self._last[inode][i] - self._first[inode][i] for inode in self._last)
      for i in (0, 1)
    )


def _read_sockets(pid):
  """Yields (inode, (bytes sent, bytes received)) of each open TCP socket."""
  if not hasattr(socket, 'TCP_INFO'):
    return
  for inode, found in tcp_sockets.find(pid):
    try:
      info = found.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _SIZE)
    except OSError:
      continue  # Not a TCP socket.
    if len(info) == _SIZE:
      yield inode, struct.unpack_from('QQ', info, _OFFSET)
