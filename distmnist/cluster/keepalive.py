"""A task's requests end with its connection, even if it breaks silently.

A task that is cut off may close a connection without the other end noticing.
Its requests to a ps (a token, the mean of the gradients, a lock) then stay
there, ahead of its successor's. And a task whose ps vanishes with its host
sends its request again at ever longer intervals, for a quarter of an hour.
TensorFlow never asks whether the other end is still there; the kernel does if
it is told to, at both ends of each connection.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Collection, Iterable

from distmnist.common import tcp_sockets

# After this silence the kernel asks at this interval, this many times: then the
# peer is gone. One that has forgotten the connection says so when first asked.
_IDLE_SECS, _ASK_SECS, _NUM_ASKED = 5, 5, 6
# What was sent and is not acknowledged after this time has not arrived. It is
# also what gRPC sets at the end that listens.
_SENT_SECS = 20
# How often a task looks for connections that it has opened since.
_LOOK_SECS = 1.0


def ask_who_connects(port: int) -> None:
  """Makes the kernel check the peers of a server of this process.

  To be called when it listens, as its connections inherit what is set then.
  """
  for _, found in tcp_sockets.find():
    with contextlib.suppress(OSError):  # It is not a TCP socket.
      if _listens(found, port):
        set_on(found)


def look_after_own(addresses: Iterable[str]) -> None:
  """Makes the kernel check the tasks that this process connects to.

  From now on, in a thread: TensorFlow opens connections whenever it needs one.

  Args:
    addresses: 'host:port' of all tasks.
  """
  ports = {int(address.rpartition(':')[2]) for address in addresses}

  def look() -> None:
    while True:
      with contextlib.suppress(OSError):  # No descriptor is left to look with.
        set_on_own(ports)
      pause.wait(_LOOK_SECS)

  pause = threading.Event()
  threading.Thread(target=look, daemon=True).start()


def set_on_own(ports: Collection[int]) -> None:
  """Does so once, for what is connected to one of these ports now."""
  for _, found in tcp_sockets.find():
    with contextlib.suppress(OSError):  # It is not connected, or no TCP socket.
      if found.getpeername()[1] in ports:
        set_on(found)
        found.setsockopt(
          socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 1000 * _SENT_SECS
        )


def set_on(connection: socket.socket) -> None:
  """Makes the kernel check the peer of a socket."""
  connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
  for option, value in (
    (socket.TCP_KEEPIDLE, _IDLE_SECS),
    (socket.TCP_KEEPINTVL, _ASK_SECS),
    (socket.TCP_KEEPCNT, _NUM_ASKED),
  ):
    connection.setsockopt(socket.IPPROTO_TCP, option, value)


def _listens(found: socket.socket, port: int) -> bool:
  return (
    found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN) == 1
    and found.getsockname()[1] == port
  )
