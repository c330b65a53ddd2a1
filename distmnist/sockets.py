"""The bytes that this process really moved, as the kernel counted them."""

import os
import socket
import struct

# Of Linux's struct tcp_info: tcpi_bytes_acked and tcpi_bytes_received.
_OFFSET, _SIZE = 120, 136


class SocketBytes:
  """Counts what the TCP sockets of this process have sent and received.

  A socket counts from when it was first looked at until it was last: so look
  now and then, as one that was closed meanwhile takes its last bytes along.
  """

  def __init__(self):
    self._first = {}
    self._last = {}

  def look(self):
    """Reads all sockets; does nothing where the system has no such counts."""
    is_first = not self._last
    for inode, counts in _read_sockets():
      # One that is new since the first look has moved all it has since then.
      self._first.setdefault(inode, counts if is_first else (0, 0))
      self._last[inode] = counts

  def read(self):
    """Returns (bytes sent, bytes received); None before the first look."""
    if not self._last:
      return None
    return tuple(
      sum(self._last[inode][i] - self._first[inode][i] for inode in self._last)
      for i in (0, 1)
    )


def _read_sockets():
  """Yields (inode, (bytes sent, bytes received)) of each open TCP socket."""
  folder = '/proc/self/fd'
  if not (os.path.isdir(folder) and hasattr(socket, 'TCP_INFO')):
    return
  for name in os.listdir(folder):
    try:
      inode = os.readlink(f'{folder}/{name}')
      if not inode.startswith('socket:'):
        continue
      # Of its own descriptor, so that closing it leaves TensorFlow's open.
      with socket.socket(fileno=os.dup(int(name))) as found:
        if found.family not in (socket.AF_INET, socket.AF_INET6):
          continue
        info = found.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _SIZE)
    except OSError:
      continue  # It was closed meanwhile, or is no TCP socket.
    if len(info) == _SIZE:
      yield inode, struct.unpack_from('QQ', info, _OFFSET)
