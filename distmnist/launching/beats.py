"""Signs of life for agents elsewhere, from a process of their own.

A launcher may stand still: it is suspended by Ctrl-Z, or its screen or its disk
takes nothing. Its tasks must not take that for its end. So this process, in a
session of its own, gives the signs; it ends with the launcher.

It is run as a file, and imports nothing of the package: it takes 8 MiB.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import subprocess
import sys
import time

# How often a sign is given.
BEAT_SECS = 5.0
_MAX_BYTES = 1 << 12


class Beats:
  """Gives signs of life until it is closed, or this process ends. A context."""

  def __init__(self, secs: float = BEAT_SECS) -> None:
    self._secs = secs

  def __enter__(self) -> Beats:
    self._socket, theirs = socket.socketpair(
      socket.AF_UNIX, socket.SOCK_SEQPACKET
    )
    with theirs:
      self._process = subprocess.Popen(
        [
          *(sys.executable, '-I', __file__),
          *(str(theirs.fileno()), str(self._secs)),
        ],
        stdin=subprocess.DEVNULL,
        pass_fds=[theirs.fileno()],
        start_new_session=True,
      )
    return self

  def __exit__(self, *error: object) -> None:
    self._socket.close()
    try:
      self._process.wait(BEAT_SECS)
    except subprocess.TimeoutExpired:
      self._process.kill()
      self._process.wait()

  def add_pipe(self, fd: int) -> None:
    """Has an empty line written to the descriptor of a pipe, until it closes.

    What else is written there has to be whole lines from now on.
    """
    with contextlib.suppress(OSError):  # Without it the agent leaves in time.
      socket.send_fds(self._socket, [b'fd'], [fd])

  def drop_pipe(self, fd: int) -> None:
    """Ends that, so that who reads the pipe finds its end once `fd` closes."""
    with contextlib.suppress(OSError):
      self._socket.send(b'drop %d' % os.fstat(fd).st_ino)

  def add_file(self, path: str) -> None:
    """Has a file change as long as there is a folder for it."""
    with contextlib.suppress(OSError):
      self._socket.send(path.encode())


def _serve(launcher: socket.socket, beat_secs: float) -> None:
  pipes: list[int] = []
  paths: list[str] = []
  count = 0
  while True:
    deadline = time.monotonic() + beat_secs
    while (secs := deadline - time.monotonic()) > 0:
      if not select.select([launcher], [], [], secs)[0]:
        break
      data, fds, _, _ = socket.recv_fds(launcher, _MAX_BYTES, 1)
      if not data:
        return
      if fds:
        pipes += fds
      elif data.startswith(b'drop '):
        pipes = [fd for fd in pipes if not _drop(fd, int(data[5:]))]
      else:
        paths.append(data.decode())
        _touch(paths[-1], 0)
    count += 1
    pipes = [fd for fd in pipes if _write_line(fd)]
    paths = [path for path in paths if _touch(path, count)]


def _drop(fd: int, inode: int) -> bool:
  """Closes the descriptor of this pipe; returns whether it was of it."""
  if os.fstat(fd).st_ino != inode:
    return False
  os.close(fd)
  return True


def _write_line(fd: int) -> bool:
  """Writes an empty line; returns whether the pipe is still open."""
  try:
    os.write(fd, b'\n')
  except BlockingIOError:
    pass  # Its reader is behind, and has other lines to read.
  except OSError:
    os.close(fd)
    return False
  return True


def _touch(path: str, count: int) -> bool:
  """Changes a file; returns whether its folder is still there."""
  with contextlib.suppress(OSError), open(path, 'w') as file:
    file.write(str(count))
  return os.path.isdir(os.path.dirname(path))


if __name__ == '__main__':
  _serve(socket.socket(fileno=int(sys.argv[1])), float(sys.argv[2]))
