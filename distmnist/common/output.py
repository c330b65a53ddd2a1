"""What a program prints on, whatever that may be."""

import os
import select
import sys


def prepare():
  """Has a program print whatever it wants, to whatever it was given."""
  for name in ('stdout', 'stderr'):
    stream = getattr(sys, name)
    if stream is None:  # After `>&-` or `2>&-`.
      setattr(sys, name, open(os.devnull, 'w'))  # noqa: SIM115
    elif hasattr(stream, 'reconfigure'):
      # A name of a file may have characters that a terminal has not.
      stream.reconfigure(errors='backslashreplace')


def is_read():
  """Whether the output is still being read, unlike after `... | head`."""
  try:
    sys.stdout.flush()
    sys.stderr.flush()
    is_read = not _is_closed(sys.stdout)
  except BrokenPipeError:
    is_read = False
  if not is_read:
    discard()
  return is_read


def discard():
  """Has what is printed from now on, or not yet written, go nowhere."""
  # The interpreter flushes once more at exit.
  with open(os.devnull, 'wb') as nowhere:
    for stream in (sys.stdout, sys.stderr):
      os.dup2(nowhere.fileno(), stream.fileno())


def _is_closed(stream):
  """Whether a stream is a pipe that nobody reads any more."""
  try:
    descriptor = stream.fileno()
  except (OSError, ValueError):  # Not a file: a test's, or closed by us.
    return False
  poll = select.poll()
  poll.register(descriptor, select.POLLOUT)
  return any(event & select.POLLERR for _, event in poll.poll(0))
