"""A separate network for the tasks of one machine.

TensorFlow's server listens on all addresses and authenticates nobody: anyone
who reaches its port can run code in it. In a network namespace of their own,
with loopback alone, the tasks reach each other and nobody else reaches them.

A launcher without the right to make one (CAP_SYS_ADMIN) makes it within a new
user namespace, where the kernel lets users do that.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import socket
import struct
from collections.abc import Iterable
from typing import NoReturn

_CLONE_NEWUSER = 0x10000000
_CLONE_NEWNET = 0x40000000
_SIOCSIFFLAGS = 0x8914
_IFF_UP = 1


class Namespace:
  """A network namespace; it lives while a process is in it or it is open.

  Attributes:
    fds: the descriptors that keep it alive: first that of its user namespace,
      if it has one.
  """

  def __init__(self, fds: Iterable[int]) -> None:
    self.fds = list(fds)
    for fd in self.fds:
      os.set_inheritable(fd, False)

  def enter(self) -> None:
    """Moves this single-threaded process into it; cannot be undone.

    Raises:
      OSError: the kernel refuses.
    """
    # The user namespace comes first: it gives the right to enter the other.
    for fd in self.fds:
      _call('setns', fd, 0)

  def close(self) -> None:
    while self.fds:
      os.close(self.fds.pop())


def make_namespace() -> Namespace:
  """Returns a new Namespace, in which loopback is up.

  Raises:
    OSError: this machine does not let this user make one; says why.
  """
  ours, theirs = socket.socketpair()
  with ours:
    with theirs:
      # A process that leaves its network cannot return without privileges: so
      # a child leaves, and its descriptors keep what it made alive.
      pid = os.fork()
      if pid == 0:
        _make_in_child(theirs)
    reason, fds, _, _ = socket.recv_fds(ours, 1024, 2)
    os.waitpid(pid, 0)
  if not fds:
    raise OSError(f'cannot create a network namespace: {reason.decode()}')
  return Namespace(fds)


def _make_in_child(parent: socket.socket) -> NoReturn:
  try:
    try:
      _call('unshare', _CLONE_NEWNET)
      _bring_loopback_up()
      kinds = ['net']  # root stays root, with all its rights over files
    except PermissionError:
      _unshare_as_user()
      _bring_loopback_up()
      kinds = ['user', 'net']
    fds = [os.open(f'/proc/self/ns/{kind}', os.O_RDONLY) for kind in kinds]
    socket.send_fds(parent, [b'made'], fds)
  except OSError as error:
    parent.send(f'{error.filename or "loopback"}: {error.strerror}'.encode())
  finally:
    os._exit(0)


def _unshare_as_user() -> None:
  ids = (('uid', os.geteuid()), ('gid', os.getegid()))
  _call('unshare', _CLONE_NEWUSER | _CLONE_NEWNET)
  # The kernel requires this before an unprivileged user maps groups.
  _write('/proc/self/setgroups', 'deny')
  for kind, number in ids:
    _write(f'/proc/self/{kind}_map', f'{number} {number} 1')


def _bring_loopback_up() -> None:
  request = struct.pack('16sh22x', b'lo', _IFF_UP)
  with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as anything:
    fcntl.ioctl(anything, _SIOCSIFFLAGS, request)


def _write(path: str, text: str) -> None:
  # One write, and none at close: the kernel accepts such a file only once.
  fd = os.open(path, os.O_WRONLY)
  try:
    os.write(fd, text.encode())
  except OSError as error:
    raise OSError(error.errno, error.strerror, path) from error
  finally:
    os.close(fd)


def _call(name: str, *args: int) -> None:
  if getattr(ctypes.CDLL(None, use_errno=True), name)(*args) == -1:
    number = ctypes.get_errno()
    # The kernel reports a limit of 0 user namespaces as a full disk.
    text = {errno.ENOSPC: 'no more user namespaces'}.get(number)
    raise OSError(number, text or os.strerror(number), name)
