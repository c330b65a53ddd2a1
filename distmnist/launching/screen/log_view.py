"""Shows the logs of tasks while they grow.

A task writes only to its file, which we read as it grows: neither a slow screen
nor a dying launcher can stop the task or lose a line.
"""

from __future__ import annotations

import io
import os
import shutil
import sys
from collections.abc import Callable, Mapping
from typing import TextIO

from distmnist.common import files
from distmnist.common.names import LAUNCH
from distmnist.launching.screen import terminal


def print_line(text: str) -> None:
  """Prints a line of the launcher's own."""
  # To stderr: stdout carries only the chief's lines.
  with terminal.may_close():
    print(f'{LAUNCH}: {text}', file=sys.stderr, flush=True)


class Log:
  """A log that is read while it grows."""

  def __init__(self, path: str | os.PathLike[str]) -> None:
    self._path = path
    self._rest = b''
    self._file = self._open()

  def _open(self) -> io.BufferedRandom:
    # Append mode creates it if it does not exist yet.
    return open(self._path, 'a+b', opener=files.no_follow)

  def read_lines(self, max_bytes: int = -1) -> list[str]:
    """Returns the lines completed since the last call.

    Args:
      max_bytes: the most that one call reads; a longer line comes in pieces. -1
        reads all.
    """
    data = self._file.read(max_bytes)
    if not data and self._is_removed():
      # A task that starts again makes a new one.
      with self._file:
        self._file = self._open()
      self._file.seek(0)
      data = self._file.read(max_bytes)
    data = self._rest + data
    *lines, self._rest = data.split(b'\n')
    if 0 < max_bytes <= len(self._rest):
      lines, self._rest = [*lines, self._rest], b''
    return [line.decode(errors='replace') for line in lines]

  def _is_removed(self) -> bool:
    """Whether the file is gone and there is another one of its name.

    One that was renamed, by a later run, is followed.
    """
    is_gone = not os.fstat(self._file.fileno()).st_nlink
    return is_gone and os.path.exists(self._path)

  def finish(self) -> list[str]:
    """Returns what is left, including an unfinished last line."""
    lines = self.read_lines()
    if self._rest:
      lines.append(self._rest.decode(errors='replace'))
    self._file.close()
    return lines


class Screen:
  """Shows logs as they grow; on a terminal `step` lines share one line."""

  def __init__(
    self, logs: Mapping[str, str | os.PathLike[str]], out: TextIO | None = None
  ) -> None:
    """Opens the logs, which may not exist yet; skips lines already in them.

    Args:
      logs: what to show before each line of a log -> the log's path.
      out: stdout by default.
    """
    self._logs = {prefix: Log(path) for prefix, path in logs.items()}
    self._out = out or sys.stdout
    self._is_line_open = False

  def update(self) -> None:
    """Shows the lines that were completed since the last call."""
    self._show(Log.read_lines)

  def finish(self) -> None:
    """Shows what is left, including an unfinished last line."""
    self._show(Log.finish)
    with terminal.may_close():
      self.close_line()
      self._out.flush()

  def print_line(self, text: str) -> None:
    """Prints a line of the launcher's own."""
    with terminal.may_close():
      self.close_line()
    print_line(text)

  def close_line(self) -> None:
    """Makes what comes next, from any source, begin on its own line."""
    if self._is_line_open:
      self._out.write('\n')
      self._is_line_open = False

  def _show(self, read: Callable[[Log], list[str]]) -> None:
    lines = [
      prefix + line for prefix, log in self._logs.items() for line in read(log)
    ]
    if not lines:
      return
    with terminal.may_close():
      for line in lines:
        self._show_line(line)
      self._out.flush()

  def _show_line(self, line: str) -> None:
    if self._out.isatty() and line.startswith('step '):
      # A line that wraps could not be redrawn.
      width = shutil.get_terminal_size().columns - 1
      self._out.write(f'\r{line[:width]}\x1b[K')
      self._is_line_open = True
    else:
      self.close_line()
      self._out.write(line + '\n')
