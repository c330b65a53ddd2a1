"""The server in the driver to which the agents on Spark's executors connect.

A peer is a newcomer until it has proved that it knows the secret of the run
(spark/messages.py) and has sent a valid hello.
"""

import contextlib
import re
import secrets
import selectors
import socket
import time

from distmnist.common import cli
from distmnist.spark import messages

# Seconds that a newcomer has until its hello.
HELLO_SECS = 10.0
# Meanwhile others wait in the listener's queue.
_MAX_NEWCOMERS = 256
_BACKLOG = 4096
# From one address: beyond this number, a newcomer has less time.
_MANY_NEWCOMERS = _MAX_NEWCOMERS // 2
_HURRIED_HELLO_SECS = 2.0


class AgentServer:
  """An authenticating listener, and the connections that it has accepted.

  Attributes:
    contact: dict, what an agent needs to connect: driver, [host, port]; secret.
    waker: non-blocking socket; a byte written to it interrupts `poll`.
  """

  def __init__(self, conf, welcome):
    """Listens, with a new secret.

    Args:
      conf: pyspark.SparkConf, which says on which address of the driver.
      welcome: callable(messages.Connection, hello), where hello may be any
        dict that names an executor; returns what `poll` calls this connection,
        or None to close it.

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
    self.contact = {'driver': [driver, port], 'secret': self._secret}
    self._welcome = welcome
    self._newcomers = {}  # Connection -> (deadline, host)
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
    """Interrupts `poll`; may be called from another thread."""
    with contextlib.suppress(OSError):  # It is closed already.
      self.waker.send(b'.')

  def poll(self, secs):
    """Waits up to `secs`; returns the list of peers that have sent something.

    Each is what `welcome` returned for its connection.
    """
    ready = []
    self._choose_listening()
    for key, _ in self._selector.select(secs):
      if key.fileobj is self._wake:
        self._wake.recv(4096)
      elif key.fileobj is self._listener:
        self._accept()
      elif key.data is None:
        self._greet(key.fileobj)
      else:
        ready.append(key.data)
    return ready

  def drop_closed(self):
    """Forgets the connections that are no longer open."""
    now = time.monotonic()
    for connection, (deadline, _) in self._newcomers.items():
      connection.is_open &= now < deadline
    for key in list(self._selector.get_map().values()):
      connection = key.fileobj
      if isinstance(connection, messages.Connection) and not connection.is_open:
        self._selector.unregister(connection)
        self._newcomers.pop(connection, None)
        connection.close()

  def _choose_listening(self):
    """Stops accepting while there are too many newcomers."""
    is_listening = self._listener in self._selector.get_map()
    is_full = len(self._newcomers) >= _MAX_NEWCOMERS
    if is_full and is_listening:
      self._selector.unregister(self._listener)
    elif not is_full and not is_listening:
      self._selector.register(self._listener, selectors.EVENT_READ)

  def _accept(self):
    with contextlib.suppress(OSError):  # The peer is gone already.
      accepted, (host, *_) = self._listener.accept()
      hosts = [other for _, other in self._newcomers.values()]
      is_many = hosts.count(host) >= _MANY_NEWCOMERS
      secs = _HURRIED_HELLO_SECS if is_many else HELLO_SECS
      connection = messages.Connection(accepted, self._secret, messages.DRIVER)
      self._newcomers[connection] = time.monotonic() + secs, host
      self._selector.register(connection, selectors.EVENT_READ)

  def _greet(self, connection):
    """Reads from a newcomer, whose first message is its hello."""
    received = connection.receive()
    if not received or not connection.is_open:
      return
    hello = received[0]
    is_good = is_place(hello.get('executor'))
    peer = self._welcome(connection, hello) if is_good else None
    if peer is None:
      connection.is_open = False
      return
    del self._newcomers[connection]
    self._selector.modify(connection, selectors.EVENT_READ, data=peer)


def is_place(text):
  """Whether `text`, of any type, can be an address or the name of an executor.

  It is shown to the user, so it must not look like more than that.
  """
  return isinstance(text, str) and bool(
    re.fullmatch(r'[\w.:\[\]() -]{1,300}', text)
  )
