"""The bytes that a process really moved, as the kernel counted them."""

import ctypes
import os
import socket
import struct

# Of Linux's struct tcp_info: tcpi_bytes_acked and tcpi_bytes_received.
_OFFSET, _SIZE = 120, 136
_SYS_PIDFD_GETFD = 438


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
  folder = f'/proc/{pid or "self"}/fd'
  if not (os.path.isdir(folder) and hasattr(socket, 'TCP_INFO')):
    return
  for name in os.listdir(folder):
    try:
      inode = os.readlink(f'{folder}/{name}')
      if not inode.startswith('socket:'):
        continue
      # Of its own descriptor, so that closing it leaves TensorFlow's open.
      with socket.socket(fileno=_duplicate(pid, int(name))) as found:
        if found.family not in (socket.AF_INET, socket.AF_INET6):
          continue
        info = found.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _SIZE)
    except OSError:
      continue  # It was closed meanwhile, or is no TCP socket.
    if len(info) == _SIZE:
      yield inode, struct.unpack_from('QQ', info, _OFFSET)


def _duplicate(pid, fd):
  """Returns a descriptor of ours for that of a process."""
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
