"""JSON messages over a TCP connection, one per line.

Input is parsed as JSON and nothing else: it is neither unpickled nor
evaluated. Both ends first prove that they know the secret of the run
(spark/handshake.py). Each later line starts with the HMAC of its sender, number
and text, so a line that is changed, dropped or added on the way is noticed; the
lines are not encrypted.
"""

import json
import select
import socket
import time

from distmnist.spark import handshake

MAX_MESSAGE_BYTES = 1 << 22
# From a peer that has not yet proved that it knows the secret.
MAX_UNAUTHENTICATED_BYTES = 1 << 12
CONNECT_SECS = 20.0
SEND_SECS = 30.0


class Connection:
  """One end of a connection.

  Attributes:
    is_open: whether the other end is connected and has sent nothing invalid.
    max_bytes: int, the longest message that is accepted.
  """

  def __init__(self, connected, max_bytes=MAX_MESSAGE_BYTES):
    """
    Args:
      connected: socket.
      max_bytes: int, the longest message that is accepted.
    """
    connected.settimeout(SEND_SECS)
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    # A host that vanished without a word is noticed after 10 + 3 * 5 s.
    for option, value in (
      ('TCP_KEEPIDLE', 10),
      ('TCP_KEEPINTVL', 5),
      ('TCP_KEEPCNT', 3),
    ):
      if hasattr(socket, option):
        connected.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
    self._socket = connected
    self._rest = b''
    self._key = None
    self.max_bytes = max_bytes
    self.is_open = True

  def fileno(self):
    return self._socket.fileno()

  def close(self):
    self.is_open = False
    self._socket.close()

  def secure(self, key, me, other):
    """Authenticates each message from now on, in both directions.

    Args:
      key: str, for this connection alone.
      me, other: str, different names for the two ends.
    """
    self._key = key
    self._names = {'sent': me, 'received': other}
    self._counts = {'sent': 0, 'received': 0}

  def _sign(self, direction, text):
    number = self._counts[direction]
    self._counts[direction] += 1
    return handshake.sign(
      self._key, f'{self._names[direction]} {number} {text}'
    )

  def send(self, **message):
    """Sends a message, unless the other end is gone."""
    if not self.is_open:
      return
    text = json.dumps(message)
    if self._key:
      text = f'{self._sign("sent", text)} {text}'
    try:
      self._socket.sendall(text.encode() + b'\n')
    except OSError:  # The peer is gone, or has not read for SEND_SECS.
      self.is_open = False

  def receive(self, timeout_secs=0.0):
    """Returns the messages (list of dict) that have arrived.

    Waits up to `timeout_secs` for data, and reads once.
    """
    if not self.is_open:
      return []
    # Not select.select, which fails from descriptor 1024 on.
    poll = select.poll()
    poll.register(self, select.POLLIN)
    if not poll.poll(1000 * timeout_secs):
      return []
    try:
      data = self._socket.recv(1 << 16)
    except OSError:
      data = b''
    *lines, self._rest = (self._rest + data).split(b'\n')
    messages = []
    for line in lines:
      message = None
      if len(line) <= self.max_bytes:
        message = self._parse(line)
      if message is None:
        self.is_open = False
        return messages
      messages.append(message)
    if not data or len(self._rest) > self.max_bytes:
      self.is_open = False
    return messages

  def _parse(self, line):
    if self._key:
      signature, _, line = line.decode(errors='replace').partition(' ')
      if not handshake.is_same(self._sign('received', line), signature):
        return None
    return parse_object(line)


def parse_object(line):
  """Returns the JSON object (dict) in `line` (bytes or str), else None."""
  try:
    value = json.loads(line)
  except (ValueError, RecursionError):
    return None
  return value if isinstance(value, dict) else None


def connect(host, port, secret):
  """Returns a Connection to the driver, which must know `secret` (str) too.

  Raises:
    OSError: nothing answers there, or what answers does not know the secret.
  """
  connection = Connection(socket.create_connection((host, port), CONNECT_SECS))
  agent = handshake.Agent(secret)
  answer = agent.answer(_receive_one(connection))
  if answer:
    connection.send(**answer)
    if agent.is_driver(_receive_one(connection)):
      connection.secure(agent.key, 'agent', 'driver')
      return connection
  connection.close()
  raise OSError('what answers there is not the driver of this run')


def _receive_one(connection):
  """Returns the next message; {} if none or more than one arrives."""
  deadline = time.monotonic() + CONNECT_SECS
  while connection.is_open and (secs := deadline - time.monotonic()) > 0:
    if messages := connection.receive(secs):
      return messages[0] if len(messages) == 1 else {}
  return {}
