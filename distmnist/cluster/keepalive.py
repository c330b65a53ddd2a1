"""What a task has asked for ends when its connection does, even unsaid.

A task that is cut off may close a connection without the other end hearing of
it. What it had asked a ps for then stays there, before what its successor asks
for: a token, the mean of the gradients, a lock. TensorFlow's servers never ask
whether the other end is still there; the kernel does if it is told to.
"""

import contextlib
import socket

from distmnist.common import tcp_sockets

# Silent for so long, asked so often and so many times: then it is gone. An end
# that has forgotten the connection says so when it is first asked.
_IDLE_SECS, _ASK_SECS, _NUM_ASKED = 5, 5, 6


def ask_who_connects(port):
  """Has the kernel ask for the peers of a server of this process.

  To be called when it listens, as its connections take over what is set then.

  Args:
    port: int.
  """
  for _, found in tcp_sockets.find():
    with contextlib.suppress(OSError):  # It is not one of TCP.
      if _listens(found, port):
        set_on(found)


def set_on(connection):
  """Has the kernel ask for the peer of a socket.socket."""
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
