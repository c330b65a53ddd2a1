"""What went wrong with which tasks, in words for people."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator, Mapping

import tensorflow.compat.v1 as tf

from distmnist.common import cli

# With more tasks than this, a line names some and counts the rest.
_MAX_LISTED = 8
# What TensorFlow raises when another task is gone, or has restarted.
GONE = tf.errors.AbortedError, tf.errors.UnavailableError
# What the text of an error contains if the loss of a task was its cause.
_LOST = re.compile(
  'UNAVAILABLE|ABORTED|Session handle is not found|RecvFromRemote'
)

# What TensorFlow puts before an error that one or more tasks report.
_HEAD = re.compile(
  r'Graph execution error:|\d+ root error\(s\) found\.'
  r'|(\(\d+\) )?([A-Z_]+: )?From /job:\S+:|\(\d+\) ([A-Z_]+: )?'
)


def list_tasks(addresses: Mapping[str, str]) -> str:
  """Returns 'worker 0 at host:port, ...' of {name: 'host:port'}."""
  return list_some(f'{name} at {text}' for name, text in addresses.items())


def list_some(texts: Iterable[str]) -> str:
  """Returns 'a, b, ..., 300 more' for many texts, and all of a few."""
  texts = list(texts)
  more = len(texts) - _MAX_LISTED
  if more > 0:
    texts[_MAX_LISTED - 1 :] = [f'{more + 1} more']
  return ', '.join(texts)


def explain(error: tf.errors.OpError) -> str:
  """Returns the line of a tf.errors.OpError that says what is wrong."""
  lines = [line.strip() for line in error.message.splitlines()]
  # That line comes after the stack of the node, if there is one.
  nodes = [i for i, line in enumerate(lines) if line.startswith('Node: ')]
  start = nodes[-1] + 1 if nodes else 0
  for line in lines[start:]:
    while head := _HEAD.match(line):
      line = line[head.end() :].strip()
    if line and not line.startswith('==='):
      return line[:200]
  return type(error).__name__


@contextlib.contextmanager
def naming_losses() -> Iterator[None]:
  """Turns errors caused by a lost task into one that a session recovers from.

  MonitoredSession makes a new session after AbortedError and UnavailableError.
  But when several ops fail at once, TensorFlow may report one that was only
  cancelled because another had lost its task.

  Raises:
    tf.errors.AbortedError: in place of such an error.
  """
  try:
    yield
  except GONE:
    raise
  except tf.errors.OpError as error:
    if not is_loss(error):
      raise
    raise tf.errors.AbortedError(
      error.node_def, error.op, error.message
    ) from error


def make_replaced(name: str) -> cli.LostError:
  """Returns the cli.LostError of task `name` that has lost its place."""
  return cli.LostError(
    f'another process has become {name} while this one was suspended or cut '
    'off: nothing is saved here'
  )


def is_loss(error: tf.errors.OpError) -> bool:
  """Whether a tf.errors.OpError was caused by a lost task."""
  return isinstance(error, GONE) or bool(_LOST.search(error.message))
