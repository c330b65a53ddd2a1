"""JSON messages over a TCP connection, one a line.

What comes in is parsed as JSON and nothing else: it is neither unpickled nor
evaluated. Who connects shows first that he knows the secret of the run: he
answers a challenge with its HMAC, so that the secret itself does not travel.
What follows is not encrypted.
"""

import hashlib
import hmac
import json
import secrets
import select
import socket

MAX_MESSAGE_BYTES = 1 << 22
# Of who has not shown yet that he knows the secret.
MAX_STRANGER_BYTES = 1 << 12
CONNECT_SECS = 20.0
SEND_SECS = 30.0


class Connection:
  """One end of a connection.

  Attributes:
    is_open: whether the other end is there and has made sense so far.
    max_bytes: int, the longest message that is taken.
  """

  def __init__(self, connected, max_bytes=MAX_MESSAGE_BYTES):
    """
    Args:
      connected: socket.
      max_bytes: int, the longest message that is taken.
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
    self.max_bytes = max_bytes
    self.is_open = True

  def fileno(self):
    return self._socket.fileno()

  def close(self):
    self.is_open = False
    self._socket.close()

  def send(self, **message):
    """Sends a message, if the other end takes it."""
    if not self.is_open:
      return
    try:
      self._socket.sendall(json.dumps(message).encode() + b'\n')
    except OSError:  # It is gone, or has not read for SEND_SECS.
      self.is_open = False

  def receive(self, timeout_secs=0.0):
    """Returns the messages (list of dict) that have come.

    Waits for `timeout_secs` if there is nothing, and reads once.
    """
    if not self.is_open:
      return []
    if not select.select([self], [], [], timeout_secs)[0]:
      return []
    try:
      data = self._socket.recv(1 << 16)
    except OSError:
      data = b''
    *lines, self._rest = (self._rest + data).split(b'\n')
    messages = []
    for line in lines:
      message = parse_object(line)
      if message is None or len(line) > self.max_bytes:
        self.is_open = False
        return messages
      messages.append(message)
    if not data or len(self._rest) > self.max_bytes:
      self.is_open = False
    return messages


def parse_object(line):
  """Returns the dict that `line` (bytes or str) holds as JSON; None if none."""
  try:
    value = json.loads(line)
  except (ValueError, RecursionError):
    return None
  return value if isinstance(value, dict) else None


def make_challenge():
  return secrets.token_hex(32)


def answer(secret, challenge):
  """Returns the HMAC-SHA256 (str) of a challenge under `secret`, both str."""
  return hmac.new(
    secret.encode(), challenge.encode(), hashlib.sha256
  ).hexdigest()


def is_right(secret, challenge, given):
  """Whether `given`, anything, is the answer to a challenge."""
  return isinstance(given, str) and hmac.compare_digest(
    answer(secret, challenge).encode(), given.encode()
  )


def connect(host, port, secret):
  """Returns a Connection to who challenges there, and answers him.

  Raises:
    OSError: nobody is there, or nobody who challenges.
  """
  connection = Connection(socket.create_connection((host, port), CONNECT_SECS))
  messages = connection.receive(CONNECT_SECS)
  challenge = messages[0].get('challenge') if messages else None
  if not isinstance(challenge, str):
    connection.close()
    raise OSError('what answers there is not the driver of this run')
  connection.send(answer=answer(secret, challenge))
  return connection
