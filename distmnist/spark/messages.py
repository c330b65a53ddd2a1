"""JSON messages over a TCP connection between Spark's driver and an agent.

Input is parsed as JSON and nothing else: it is neither unpickled nor evaluated.
The first line of each end is a challenge: random, and new for each connection,
so a recording of another one is of no use. With the secret of the run, which is
never sent here, both ends derive the key of this connection from the two:

  key                   HMAC(secret, "DRIVER'S CHALLENGE AGENT'S CHALLENGE")
  each later line       HMAC(key, "driver|agent NUMBER TEXT") TEXT

The HMAC names the sender, so neither end can send back what the other sent, and
numbers the line, so one that is changed, dropped or added on the way is
noticed. The first line of this kind has an empty object for its text: it proves
that the sender knows the secret. The lines are not encrypted.
"""

import hmac
import itertools
import json
import re
import secrets
import select
import socket
import time

from distmnist.cluster import keepalive

MAX_MESSAGE_BYTES = 1 << 22
# From a peer that has not yet proved that it knows the secret.
MAX_UNAUTHENTICATED_BYTES = 1 << 12
CONNECT_SECS = 20.0
SEND_SECS = 30.0
DRIVER, AGENT = b'driver', b'agent'
_CHALLENGE = re.compile(b'[0-9a-f]{64}')


class Connection:
  """One end of a connection.

  Attributes:
    is_open: whether the other end is connected and has sent nothing invalid.
    is_authenticated: whether it has proved that it knows the secret.
  """

  def __init__(self, connected, secret, me):
    """Sends the challenge of this end.

    Args:
      connected: socket.
      secret: str, known to the other end too.
      me: which end this is, DRIVER or AGENT.
    """
    connected.settimeout(SEND_SECS)
    # A line does not wait until the last one was acknowledged.
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    keepalive.set_on(connected)
    self._socket = connected
    self._secret = secret.encode()
    self._me, self._other = me, AGENT if me == DRIVER else DRIVER
    self._challenge = secrets.token_hex(32).encode()
    self._key = None
    self._num_sent, self._num_received = itertools.count(), itertools.count()
    self._rest = b''
    self.is_open = True
    self.is_authenticated = False
    self._write(self._challenge)

  def fileno(self):
    return self._socket.fileno()

  def close(self):
    self.is_open = False
    self._socket.close()

  def send(self, **message):
    """Sends a message, unless the other end is gone."""
    if self.is_open:
      text = json.dumps(message).encode()
      signature = self._sign(self._me, next(self._num_sent), text)
      self._write(signature + b' ' + text)

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
      message = self._parse(line)
      if message is None:
        self.is_open = False
        return messages
      if message:
        messages.append(message)
    if not data or len(self._rest) > self._max_bytes:
      self.is_open = False
    return messages

  @property
  def _max_bytes(self):
    is_known = self.is_authenticated
    return MAX_MESSAGE_BYTES if is_known else MAX_UNAUTHENTICATED_BYTES

  def _write(self, line):
    try:
      self._socket.sendall(line + b'\n')
    except OSError:  # The peer is gone, or has not read for SEND_SECS.
      self.is_open = False

  def _parse(self, line):
    """Returns the message (dict) in a line (bytes), None if it is invalid.

    It is empty in the lines by which the ends meet.
    """
    if len(line) > self._max_bytes:
      return None
    if self._key is None:
      if not _CHALLENGE.fullmatch(line):
        return None
      said = {self._me: self._challenge, self._other: line}
      both = said[DRIVER] + b' ' + said[AGENT]
      self._key = hmac.digest(self._secret, both, 'sha256')
      self.send()
      return {}
    signature, _, text = line.partition(b' ')
    expected = self._sign(self._other, next(self._num_received), text)
    if not hmac.compare_digest(expected, signature):
      return None
    self.is_authenticated = True
    return parse_object(text)

  def _sign(self, sender, number, text):
    signed = b'%s %d %s' % (sender, number, text)
    return hmac.digest(self._key, signed, 'sha256').hex().encode()


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
  connected = socket.create_connection((host, port), CONNECT_SECS)
  connection = Connection(connected, secret, AGENT)
  deadline = time.monotonic() + CONNECT_SECS
  while connection.is_open and (secs := deadline - time.monotonic()) > 0:
    if connection.is_authenticated:
      return connection
    connection.receive(secs)
  connection.close()
  raise OSError('what answers there is not the driver of this run')
