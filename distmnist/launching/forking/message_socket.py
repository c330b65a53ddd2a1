"""JSON messages between a launcher and its fork server; neither waits to send.

What the other end has no room for is kept and sent later. Both ends used to
wait in `send` once 278 messages lay unread, each for the other.
"""

import collections
import json
import selectors
import socket

# The kernel takes no message beyond the buffer of a socket, 208 KiB by default.
MAX_BYTES = 1 << 17


def make_pair():
  """Returns a pair of connected sockets: whole messages, in their order."""
  return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


class MessageSocket:
  """One end, registered with a selector as itself."""

  def __init__(self, connected, selector):
    """
    Args:
      connected: socket, one of `make_pair`.
      selector: selectors.BaseSelector of the owner, which calls `receive` and
        `flush` as it says.
    """
    connected.setblocking(False)
    self._socket = connected
    self._selector = selector
    self._unsent = collections.deque()
    self._is_heard = True
    selector.register(self, selectors.EVENT_READ)

  def fileno(self):
    return self._socket.fileno()

  def close(self):
    self._socket.close()

  def stop_listening(self):
    """Leaves the selector, and forgets what is still to be sent."""
    self._is_heard = False
    self._selector.unregister(self)
    self._unsent.clear()

  def send(self, message):
    """Sends a dict, now or as soon as there is room for it.

    Raises:
      ValueError: it is longer than MAX_BYTES.
    """
    data = json.dumps(message).encode()
    if len(data) > MAX_BYTES:
      raise ValueError(f'{len(data)} bytes, more than {MAX_BYTES}')
    self._unsent.append(data)
    if len(self._unsent) == 1:
      self.flush()

  def flush(self):
    """Sends what there is room for now."""
    try:
      while self._unsent:
        self._socket.send(self._unsent[0])
        self._unsent.popleft()
    except BlockingIOError:
      pass
    except OSError:
      self._unsent.clear()  # It has gone: the next read says so.
    if self._is_heard:
      writes = selectors.EVENT_WRITE if self._unsent else 0
      self._selector.modify(self, selectors.EVENT_READ | writes)

  def receive(self):
    """Returns the next message (dict), or None at the end of the other end.

    Raises:
      BlockingIOError: there is none yet.
      ConnectionResetError: the other end left with messages unread. Comes
        once, and before what it had still to say.
    """
    data = self._socket.recv(MAX_BYTES)
    return json.loads(data) if data else None
