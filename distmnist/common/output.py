"""What a program prints on, whatever that may be."""

from __future__ import annotations

import os
import select
import sys
from typing import IO


def prepare() -> None:
  """Has a program print whatever it wants, to whatever it was given."""
  fill_gaps()
  for name in ('stdout', 'stderr'):
    stream = getattr(sys, name)
    if stream is None:  # After `>&-` or `2>&-`.
      setattr(sys, name, open(os.devnull, 'w'))  # noqa: SIM115
    elif hasattr(stream, 'reconfigure'):
      # A name of a file may have characters that a terminal has not.
      stream.reconfigure(errors='backslashreplace')


def fill_gaps() -> None:
  """Opens os.devnull for each of stdin, stdout and stderr that is closed.

  After `2>&-`, say, the next socket would get the number of stderr, and with it
  all that is printed there.
  """
  while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
    os.set_inheritable(descriptor, True)
  os.close(descriptor)


def is_read() -> bool:
  """Whether the output is still being read, unlike after `... | head`."""
  try:
    sys.stdout.flush()
    sys.stderr.flush()
    if not _is_closed(sys.stdout):
      return True
  except BrokenPipeError:
    pass
  discard(sys.stdout, sys.stderr)
  return False


def discard(*streams: IO) -> None:
  """Has what is printed to `streams`, or not yet written, go nowhere."""
  # The interpreter flushes once more at exit.
  with open(os.devnull, 'wb') as nowhere:
    for stream in streams:
      os.dup2(nowhere.fileno(), stream.fileno())


def _is_closed(stream: IO) -> bool:
  """Whether a stream is a pipe that nobody reads any more."""
  try:
    descriptor = stream.fileno()
  except (OSError, ValueError):  # Not a file: a test's, or closed by us.
    return False
  return has_event(descriptor, select.POLLERR)


def has_event(descriptor: int, event: int) -> bool:
  """Whether poll(2) tells `event` of a descriptor to write to."""
  poll = select.poll()
  poll.register(descriptor, select.POLLOUT)
  return any(found & event for _, found in poll.poll(0))
