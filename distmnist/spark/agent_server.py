"""The server in the driver to which the agents on Spark's executors connect.

A peer is a newcomer until it has proved that it knows the secret of the run
(spark/links.py) and has sent a valid hello. Each has a thread that reads, so
that nobody who says nothing, or half a message, delays the driver.
"""

from __future__ import annotations

import collections
import contextlib
import re
import secrets
import socket
from collections.abc import Callable, Iterator
from multiprocessing import connection as connection_lib
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from distmnist.common import cli
from distmnist.spark import links

if TYPE_CHECKING:
  import pyspark

# For each answer of a newcomer, and for its hello.
HELLO_SECS = 10.0
# Meanwhile others wait in the listener's queue.
_MAX_NEWCOMERS = 256
_BACKLOG = 4096

_Peer = TypeVar('_Peer')


class AgentServer(Generic[_Peer]):
  """An authenticating listener, and the connections that it has accepted.

  Attributes:
    contact: what an agent needs to connect: driver, [host, port]; secret.
    waker: non-blocking socket; a byte written to it interrupts `poll`.
  """

  def __init__(
    self,
    conf: pyspark.SparkConf,
    welcome: Callable[[links.Link, links.Message], _Peer | None],
  ) -> None:
    """Listens, with a new secret.

    Args:
      conf: says on which address of the driver.
      welcome: called with a Link and its hello, which may be any message that
        names an executor; returns what `poll` calls this peer, or None to close
        the connection.

    Raises:
      cli.RunError: it cannot listen there.
    """
    driver = conf.get('spark.driver.host')
    host = conf.get('spark.driver.bindAddress') or driver
    try:
      self._listener = socket.create_server((host, 0), backlog=_BACKLOG)
    except OSError as error:
      raise cli.RunError(
        f'the driver cannot listen on {host}: {error.strerror}: set'
        ' spark.driver.bindAddress to an address of this machine'
      ) from error
    port = self._listener.getsockname()[1]
    self._secret = secrets.token_hex(32)
    self.contact: dict[str, Any] = {
      'driver': [driver, port],
      'secret': self._secret,
    }
    self._welcome = welcome
    # What `welcome` returned, None for a newcomer.
    self._peers: dict[links.Link, _Peer | None] = {}
    # From the threads of the links.
    self._heard: collections.deque[tuple[links.Link, links.Message | None]] = (
      collections.deque()
    )
    self._wake, self.waker = socket.socketpair()
    self.waker.setblocking(False)

  def close(self) -> None:
    """Ends all connections."""
    for link in self._peers:
      link.close()
    for each in (self._listener, self._wake, self.waker):
      each.close()

  def wake(self) -> None:
    """Interrupts `poll`; may be called from another thread."""
    with contextlib.suppress(OSError):  # It is closed already.
      self.waker.send(b'.')

  def poll(
    self, secs: float | None
  ) -> list[tuple[_Peer, links.Message | None]]:
    """Waits up to `secs`; returns [(peer, message), ...].

    A peer is what `welcome` returned for it; the message is None once
    its connection has ended. Nothing comes from a link that is closed at
    this end.
    """
    wanted: list[Any] = [self._wake]
    if list(self._peers.values()).count(None) < _MAX_NEWCOMERS:
      wanted.append(self._listener)
    ready = connection_lib.wait(wanted, secs)
    if self._wake in ready:
      self._wake.recv(4096)
    if self._listener in ready:
      self._accept()
    return list(self._take())

  def _accept(self) -> None:
    with contextlib.suppress(OSError):  # The peer is gone already.
      link = links.Link(self._listener.accept()[0])
      self._peers[link] = None
      link.listen(self._hear, lambda: link.meet(self._secret, True, HELLO_SECS))

  def _hear(self, link: links.Link, message: links.Message | None) -> None:
    """Notes a message; called by the thread of the Link."""
    self._heard.append((link, message))
    self.wake()

  def _take(self) -> Iterator[tuple[_Peer, links.Message | None]]:
    """Generates what `poll` returns from what was heard."""
    while self._heard:
      link, message = self._heard.popleft()
      peer = self._peers[link]
      if peer is None and message is not None:
        is_good = link.is_open and is_place(message.get('executor'))
        self._peers[link] = self._welcome(link, message) if is_good else None
        if self._peers[link] is None:
          link.close()
      elif peer is not None and link.is_open:
        yield peer, message
      if message is None:
        link.close()
        del self._peers[link]


def is_place(text: Any) -> bool:
  """Whether `text`, of any type, can be an address or the name of an executor.

  It is shown to the user, so it must not look like more than that.
  """
  return isinstance(text, str) and bool(
    re.fullmatch(r'[\w.:\[\]() -]{1,300}', text)
  )
