"""A task's requests end with its connection, even if it breaks silently.

A task that is cut off may close a connection without the other end noticing.
Its requests to a ps (a token, the mean of the gradients, a lock) then stay
there, ahead of its successor's. TensorFlow's servers never ask whether the
other end is still there; the kernel does if it is told to.
"""

import contextlib
import socket

from distmnist.common import tcp_sockets

# After this silence the kernel asks at this interval, this many times: then the
# peer is gone. One that has forgotten the connection says so when first asked.
_IDLE_SECS, _ASK_SECS, _NUM_ASKED = 5, 5, 6


def ask_who_connects(port):
  """Makes the kernel check the peers of a server of this process.

  To be called when it listens, as its connections inherit what is set then.

  Args:
    port: int.
  """
  for _, found in tcp_sockets.find():
    with contextlib.suppress(OSError):  # It is not a TCP socket.
      if _listens(found, port):
        set_on(found)


def set_on(connection):
  """Makes the kernel check the peer of a socket.socket."""
  connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
  for option, value in (
    (socket.TCP_KEEPIDLE, _IDLE_SECS),
    (socket.TCP_KEEPINTVL, _ASK_SECS),
    (socket.TCP_KEEPCNT, _NUM_ASKED),
  ):
    connection.setsockopt(socket.IPPROTO_TCP, option, value)


def _listens(found, port):
  return (
    found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN) == 1
    and found.getsockname()[1] == port
  )
