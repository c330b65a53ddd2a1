"""A terminal that has closed, or a full disk: lines are lost, the run goes on.

The logs have all of them. A pipe that nobody reads is another matter: whoever
closes that wants no more of the program (common/cli.py).
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import stat
import sys
from collections.abc import Iterator

from distmnist.common import files, output


@contextlib.contextmanager
def may_close() -> Iterator[None]:
  """Bears the end of a terminal that stdout or stderr goes to, or a full disk.

  The first write to a terminal that is gone fails with EIO; later ones go
  nowhere. On a disk they are tried again.
  """
  try:
    yield
  except OSError as error:
    is_full = error.errno in files.FULL
    if not is_full and (error.errno != errno.EIO or not _leave()):
      raise


def _leave() -> bool:
  """Points the streams whose terminal is gone to nowhere; returns whether any.

  What they still hold goes there too.
  """
  gone = [each for each in (sys.stdout, sys.stderr) if _is_gone(each.fileno())]
  output.discard(*gone)
  return bool(gone)


def _is_gone(descriptor: int) -> bool:
  # isatty() no longer says that it was a terminal.
  if not stat.S_ISCHR(os.fstat(descriptor).st_mode):
    return False
  return output.has_event(descriptor, select.POLLHUP)
