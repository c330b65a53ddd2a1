"""The bytes that a process really moved, as the kernel counted them."""

import socket
import struct

from distmnist.common import tcp_sockets

# Of Linux's struct tcp_info: tcpi_bytes_acked and tcpi_bytes_received.
_OFFSET, _SIZE = 120, 136


class SocketBytes:
  """Counts what the TCP sockets of a process have sent and received.

  A socket counts from when it was first looked at until it was last: so look
  now and then, as one that was closed meanwhile takes its last bytes along.
  """

  def __init__(self, pid=None):
    """
    Args:
      pid: int, of a process that we may trace; None is this one.
    """
    self._pid = pid
    self._has_looked = False
    self._first = {}
    self._last = {}

  def look(self):
    """Reads all sockets; does nothing where the system has no such counts."""
    for inode, counts in _read_sockets(self._pid):
      # One that is new since the first look has moved all it has since then.
      self._first.setdefault(inode, (0, 0) if self._has_looked else counts)
      self._last[inode] = counts
    self._has_looked = True

  def read(self):
    """Returns (bytes sent, bytes received); None before the first look."""
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
      continue  # It is not one of TCP.
    if len(info) == _SIZE:
      yield inode, struct.unpack_from('QQ', info, _OFFSET)
