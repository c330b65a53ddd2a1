"""Sets what `ps` and `pgrep -f` show of this process.

The kernel shows the memory that held the command line at the start, so a title
is written there, and cut to fit. As its forks have only the same space, the
fork server is started with blanks at the end of its command line.
"""

from __future__ import annotations

import contextlib
import ctypes
import os

# Fields of /proc/self/stat, counted after the name of the program.
_ARG_START, _ARG_END = 45, 46


def set_title(title: str) -> None:
  """Shows `title` in place of the command line, if Linux lets us."""
  with contextlib.suppress(OSError, IndexError):
    with open('/proc/self/stat', encoding='utf-8') as file:
      fields = file.read().rpartition(')')[2].split()
    start, end = int(fields[_ARG_START]), int(fields[_ARG_END])
    if 0 < start < end:  # Else it is hidden from us.
      # The last byte stays 0, or the kernel reads on into the environment.
      text = os.fsencode(title)[: end - start - 1]
      ctypes.memset(start, 0, end - start)
      ctypes.memmove(start, text, len(text))
