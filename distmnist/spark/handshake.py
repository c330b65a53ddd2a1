"""How Spark's driver and an agent prove to each other that they know a secret.

  driver   {"challenge": D}
  agent    {"challenge": A, "answer": HMAC(secret, "agent D A")}
  driver   {"answer": HMAC(secret, "driver D A")}

D and A are random and new for each connection, so a recording of another one is
of no use, and the roles in the HMAC keep either side from sending back what the
other sent. The secret itself is never sent here. From it both sides derive a
key for this connection alone, which authenticates each later message
(messages.Connection.secure).
"""

import hashlib
import hmac
import re
import secrets

_NONCE = re.compile('[0-9a-f]{64}')


def sign(key, text):
  """Returns the HMAC-SHA256 (str, hexadecimal) of `text` under `key`, str."""
  return hmac.new(key.encode(), text.encode(), hashlib.sha256).hexdigest()


def is_same(signature, given):
  """Whether `given`, of any type, equals `signature`, in constant time."""
  return isinstance(given, str) and hmac.compare_digest(
    signature.encode(), given.encode(errors='replace')
  )


class _Side:
  """What both sides have in common; `key` is for the messages that follow."""

  def __init__(self, secret):
    self.challenge = secrets.token_hex(32)
    self.key = None
    self._secret = secret

  def _compute(self, driver_nonce, agent_nonce):
    """Returns the answers (str) that the agent and the driver must give."""
    nonces = f'{driver_nonce} {agent_nonce}'
    self.key = sign(self._secret, f'messages {nonces}')
    roles = ('agent', 'driver')
    return [sign(self._secret, f'{role} {nonces}') for role in roles]


class Driver(_Side):
  """The driver's side: sends `challenge` first."""

  def answer(self, message):
    """Returns the answer (dict) to a peer that knows the secret, else None.

    Args:
      message: dict, from the peer.
    """
    nonce = message.get('challenge')
    if not (isinstance(nonce, str) and _NONCE.fullmatch(nonce)):
      return None
    expected, ours = self._compute(self.challenge, nonce)
    if not is_same(expected, message.get('answer')):
      return None
    return {'answer': ours}


class Agent(_Side):
  """The agent's side."""

  def answer(self, message):
    """Returns the answer (dict) to a driver's challenge; None if invalid."""
    nonce = message.get('challenge')
    if not (isinstance(nonce, str) and _NONCE.fullmatch(nonce)):
      return None
    ours, self._expected = self._compute(nonce, self.challenge)
    return {'challenge': self.challenge, 'answer': ours}

  def is_driver(self, message):
    """Whether the dict `message` proves that its sender knows the secret."""
    return is_same(self._expected, message.get('answer'))
