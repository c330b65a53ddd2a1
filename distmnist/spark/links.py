"""Connections between Spark's driver and the agents on its executors.

They are those of Python's multiprocessing: both ends prove by HMAC that they
know the secret of the run, which is never sent here. Messages are JSON objects,
which are parsed and neither unpickled nor evaluated. They are not encrypted and
not signed, no more than what TensorFlow's servers send each other.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import socket
import struct
import threading
from collections.abc import Callable
from multiprocessing import connection as connection_lib
from typing import Any

from distmnist.cluster import keepalive

MAX_MESSAGE_BYTES = 1 << 22
# For each answer of a driver to which an agent connects.
CONNECT_SECS = 20.0
SEND_SECS = 30.0
_END_SECS = 5.0


# A JSON object.
Message = dict[str, Any]


class Link:
  """One end of a connection, which it owns and a thread of its own reads.

  Attributes:
    is_open: whether it is not closed at this end; whoever hears the end of the
      other closes it.
  """

  def __init__(self, connected: socket.socket) -> None:
    connected.settimeout(None)  # The kernel keeps the time: see _set_timeout.
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    keepalive.set_on(connected)
    self._socket = connected
    self._connection = connection_lib.Connection(connected.dup().detach())
    self._set_timeout(socket.SO_SNDTIMEO, SEND_SECS)
    self._thread: threading.Thread | None = None
    self.is_open = True

  def meet(self, secret: str, is_driver: bool, secs: float) -> None:
    """Proves to the other end that this one knows the secret, and vice versa.

    Args:
      is_driver: whether this is the driver's end.
      secs: how long to wait for each answer, and for the first message.

    Raises:
      OSError: the other end does not prove it.
    """
    self._set_timeout(socket.SO_RCVTIMEO, secs)
    # Who connects proves it first.
    steps = connection_lib.deliver_challenge, connection_lib.answer_challenge
    try:
      for step in steps if is_driver else reversed(steps):
        step(self._connection, secret.encode())
    except (
      # It says nothing, or nonsense, or this Python may not compute an MD5.
      *(AssertionError, EOFError, OSError, ValueError),
      multiprocessing.AuthenticationError,
    ) as error:
      raise OSError('what answers does not know the secret') from error

  def listen(self, hear: Hear, meet: Callable[[], None] = lambda: None) -> None:
    """Starts the thread that reads.

    Args:
      hear: see Hear.
      meet: called in the thread before.
    """
    self._thread = threading.Thread(
      target=self._read, args=(hear, meet), daemon=True
    )
    self._thread.start()

  def send(self, **message: Any) -> None:
    """Sends a message, unless the other end is gone."""
    if self.is_open:
      try:
        self._connection.send_bytes(json.dumps(message).encode())
      except OSError:  # It is gone, or has not read for SEND_SECS.
        self._hang_up()

  def close(self) -> None:
    """Ends the connection; returns once its thread has ended."""
    if self.is_open:
      self.is_open = False
      self._hang_up()
      if self._thread:
        self._thread.join(_END_SECS)
      self._connection.close()
      self._socket.close()

  def _hang_up(self) -> None:
    with contextlib.suppress(OSError):  # The other end is gone.
      self._socket.shutdown(socket.SHUT_RDWR)

  def _set_timeout(self, option: int, secs: float) -> None:
    """Has the kernel end each read or write after `secs`; 0: never."""
    value = struct.pack('ll', int(secs), int(secs % 1 * 1e6))
    self._socket.setsockopt(socket.SOL_SOCKET, option, value)

  def wait_for_ever(self) -> None:
    """Lets the other end be silent: the kernel asks whether it is there."""
    self._set_timeout(socket.SO_RCVTIMEO, 0)

  def _read(self, hear: Hear, meet: Callable[[], None]) -> None:
    try:
      with contextlib.suppress(EOFError, OSError):
        meet()
        while (message := self._receive()) is not None:
          self.wait_for_ever()
          hear(self, message)
    finally:
      hear(self, None)

  def _receive(self) -> Message | None:
    return parse_object(self._connection.recv_bytes(MAX_MESSAGE_BYTES))


# Called with each message, and with None once the other end is gone or has sent
# anything else; in the thread of the Link.
Hear = Callable[[Link, Message | None], None]


def connect(host: str, port: int, secret: str, hear: Hear) -> Link:
  """Returns a Link to the driver, which must know `secret` too.

  Args:
    host, port: its address.
    hear: see Link.listen.

  Raises:
    OSError: nothing answers there, or what answers does not know the secret.
  """
  link = Link(socket.create_connection((host, port), CONNECT_SECS))
  try:
    link.meet(secret, False, CONNECT_SECS)
  except OSError as error:
    link.close()
    raise OSError('what answers there is not the driver of this run') from error
  # The first order comes once all agents are there, which may take minutes.
  link.wait_for_ever()
  link.listen(hear)
  return link


def parse_object(text: bytes | str) -> Message | None:
  """Returns the JSON object in `text`, else None."""
  try:
    value = json.loads(text)
  except (ValueError, RecursionError):
    return None
  return value if isinstance(value, dict) else None
