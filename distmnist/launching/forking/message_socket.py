"""JSON messages between a launcher and its fork server; sending never blocks.

Messages that the other end has no room for are kept and sent later. Both ends
used to wait for each other in `send` once 278 messages lay unread.
"""

from __future__ import annotations

import collections
import json
import selectors
import socket
from typing import Any

# The kernel takes no message larger than a socket's buffer, by default 208 KiB.
MAX_BYTES = 1 << 17


def make_pair() -> tuple[socket.socket, socket.socket]:
  """Returns a pair of connected sockets: whole messages, in order."""
  return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


class MessageSocket:
  """One end of a pair, which registers itself with a selector."""

  def __init__(
    self, connected: socket.socket, selector: selectors.BaseSelector
  ) -> None:
    """
    Args:
      connected: one of `make_pair`.
      selector: the owner's; the owner calls `receive`
        and `flush` when it says so.
    """
    connected.setblocking(False)
    self._socket = connected
    self._selector = selector
    self._unsent: collections.deque[bytes] = collections.deque()
    self._is_heard = True
    selector.register(self, selectors.EVENT_READ)

  def fileno(self) -> int:
    return self._socket.fileno()

  def close(self) -> None:
    self._socket.close()

  def stop_listening(self) -> None:
    """Leaves the selector, and drops messages that are still to be sent."""
    self._is_heard = False
    self._selector.unregister(self)
    self._unsent.clear()

  def send(self, message: dict[str, Any]) -> None:
    """Sends a message, now or as soon as there is room for it.

    Raises:
      ValueError: it is longer than MAX_BYTES.
    """
    data = json.dumps(message).encode()
    if len(data) > MAX_BYTES:
      raise ValueError(f'{len(data)} bytes, more than {MAX_BYTES}')
    self._unsent.append(data)
    if len(self._unsent) == 1:
      self.flush()

  def flush(self) -> None:
    """Sends as many messages as there is room for now."""
    try:
      while self._unsent:
        self._socket.send(self._unsent[0])
        self._unsent.popleft()
    except BlockingIOError:
      pass
    except OSError:
      self._unsent.clear()  # It is gone: the next read says so.
    if self._is_heard:
      writes = selectors.EVENT_WRITE if self._unsent else 0
      self._selector.modify(self, selectors.EVENT_READ | writes)

  def receive(self) -> dict[str, Any] | None:
    """Returns the next message, or None once the other end is closed.

    Raises:
      BlockingIOError: there is none yet.
      ConnectionResetError: the other end left with messages unread. Comes
        once, before its own last messages.
    """
    data = self._socket.recv(MAX_BYTES)
    return json.loads(data) if data else None
