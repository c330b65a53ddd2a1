"""Where the tasks of a run on Spark report to, in the driver.

One thread, which hears all connections and keeps the order of events:

  start   once all tasks are there;
  end     after the first failure the workers are stopped, then the ps; then
          all may leave.
"""

import contextlib
import dataclasses
import re
import selectors
import socket
import time

from distmnist.common import cli, files
from distmnist.spark import handshake, messages

# From the end of the last worker to that of the ps.
LEAVE_SECS = 10.0
# From the order to stop to the end of all: beyond what workers and ps have.
STOP_MARGIN_SECS = 5.5
# Seconds for a peer that has connected to show that it knows the secret.
HELLO_SECS = 10.0
# Others wait in the queue of the listener meanwhile.
_MAX_STRANGERS = 256
_BACKLOG = 4096
# From one address: beyond it a peer has less time.
_MANY_STRANGERS = _MAX_STRANGERS // 2
_HURRIED_HELLO_SECS = 2.0


@dataclasses.dataclass
class Peer:
  """A task as the driver knows it; `code` is what it has ended with."""

  name: str
  address: str
  executor: str
  connection: messages.Connection
  is_ended: bool = False
  code: int | None = None
  is_told_to_stop: bool = False

  @property
  def is_running(self):
    return self.connection.is_open and not self.is_ended


class Door:
  """Where agents come in, once they have shown that they know the secret.

  Attributes:
    port: int, where it listens.
    waker: socket that does not block; a byte into it interrupts `hear`.
  """

  def __init__(self, host, secret, welcome):
    """Listens.

    Args:
      host: str, the address to listen on.
      secret: str, what the agents know.
      welcome: callable(messages.Connection, hello), with a hello that is any
        dict; returns what `hear` calls this connection, or None to close it.

    Raises:
      cli.RunError: it cannot listen there.
    """
    try:
      self._listener = socket.create_server((host, 0), backlog=_BACKLOG)
    except OSError as error:
      raise cli.RunError(
        f'the driver cannot listen on {host}: {error.strerror}: set'
        ' spark.driver.bindAddress to an address of this machine'
      ) from error
    self.port = self._listener.getsockname()[1]
    self._secret = secret
    self._welcome = welcome
    self._strangers = {}
    self._wake, self.waker = socket.socketpair()
    self.waker.setblocking(False)
    self._selector = selectors.DefaultSelector()
    self._selector.register(self._listener, selectors.EVENT_READ)
    self._selector.register(self._wake, selectors.EVENT_READ)

  def close(self):
    """Ends all connections."""
    for key in list(self._selector.get_map().values()):
      key.fileobj.close()
    self._listener.close()
    self._selector.close()
    self.waker.close()

  def wake(self):
    """Interrupts `hear`; may be called by another thread."""
    with contextlib.suppress(OSError):  # The end has come meanwhile.
      self.waker.send(b'.')

  def _choose_listening(self):
    """Lets nobody else in while there are strangers enough."""
    is_listening = self._listener in self._selector.get_map()
    is_full = len(self._strangers) >= _MAX_STRANGERS
    if is_full and is_listening:
      self._selector.unregister(self._listener)
    elif not is_full and not is_listening:
      self._selector.register(self._listener, selectors.EVENT_READ)

  def hear(self, secs):
    """Waits up to `secs`; returns those (list) who have something to say."""
    speakers = []
    self._choose_listening()
    for key, _ in self._selector.select(secs):
      if key.fileobj is self._wake:
        self._wake.recv(4096)
      elif key.fileobj is self._listener:
        self._accept()
      elif key.data is None:
        self._meet(key.fileobj)
      else:
        speakers.append(key.data)
    return speakers

  def drop_closed(self):
    """Forgets the connections that are not open any more."""
    now = time.monotonic()
    for connection, (_, deadline, _) in self._strangers.items():
      connection.is_open &= now < deadline
    for key in list(self._selector.get_map().values()):
      connection = key.fileobj
      if isinstance(connection, messages.Connection) and not connection.is_open:
        self._selector.unregister(connection)
        self._strangers.pop(connection, None)
        connection.close()

  def _accept(self):
    with contextlib.suppress(OSError):  # It has gone again.
      accepted, (host, *_) = self._listener.accept()
      connection = messages.Connection(accepted, messages.MAX_STRANGER_BYTES)
      num_here = sum(host == other for *_, other in self._strangers.values())
      secs = HELLO_SECS if num_here < _MANY_STRANGERS else _HURRIED_HELLO_SECS
      driver = handshake.Driver(self._secret)
      self._strangers[connection] = [driver, time.monotonic() + secs, host]
      self._selector.register(connection, selectors.EVENT_READ)
      connection.send(challenge=driver.challenge)

  def _meet(self, connection):
    """Reads from an unauthenticated peer: first its answer, then its hello."""
    for message in connection.receive():
      if not connection.is_open or connection not in self._strangers:
        return
      driver = self._strangers[connection][0]
      if driver:
        answer = driver.answer(message)
        if not answer:
          connection.is_open = False
          return
        connection.send(**answer)
        connection.secure(driver.key, 'driver', 'agent')
        self._strangers[connection][0] = None
      else:
        who = self._welcome(connection, message)
        if who is None:
          connection.is_open = False
          return
        del self._strangers[connection]
        connection.max_bytes = messages.MAX_MESSAGE_BYTES
        self._selector.modify(connection, selectors.EVENT_READ, data=who)


def is_executor(text):
  """Whether `text`, anything, may be what an agent calls its executor."""
  return isinstance(text, str) and bool(
    re.fullmatch(r'[\w.:\[\]() -]{1,300}', text)
  )


def open_log(path):
  return open(path, 'a', encoding='utf-8', opener=files.no_follow)
