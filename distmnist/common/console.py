"""Lines for people: plain in a log, redrawn in place on a terminal."""

from __future__ import annotations

import logging
import math
import random
import sys
import threading
import time
from collections.abc import Callable
from typing import TextIO

_log = logging.getLogger(__name__)

_BAR_WIDTH = 20
# The pause between two looks: 5 % of the wait so far, within these bounds.
_LOOK_SECS = 0.05, 2.0


class _LineHandler(logging.Handler):
  def __init__(self, print_line: Callable[[str], object]) -> None:
    super().__init__()
    self._print_line = print_line

  def emit(self, record: logging.LogRecord) -> None:
    self._print_line(self.format(record))


def print_logs(print_line: Callable[[str], object]) -> None:
  """Prints what distmnist's modules, and no others, log, as plain lines.

  The main function of a program calls this; the last call counts.

  Args:
    print_line: called with each, such as Console.say.
  """
  logger = logging.getLogger('distmnist')
  logger.handlers = [_LineHandler(print_line)]
  logger.setLevel(logging.INFO)
  # absl's handler at the root would print them on stderr once more.
  logger.propagate = False


def print_to_stderr(line: str) -> None:
  """Prints a line of a program whose stdout holds only its answer."""
  print(line, file=sys.stderr, flush=True)


class Wait:
  """A wait for other tasks: neither silent nor endless.

  After one second a line says what is awaited; from then on, one every 5 s also
  says how long it has been.

  Attributes:
    last_look: of the class: when one of this process was last asked, by
      time.monotonic().
  """

  last_look = -math.inf

  def __init__(self, limit_secs: float) -> None:
    """
    Args:
      limit_secs: seconds from now; may be infinite.
    """
    self._limit_secs = limit_secs
    self._start = time.monotonic()
    self._end = self._start + limit_secs
    self._next_line = self._start + 1
    self._has_logged = False

  def renew(self) -> None:
    """Begins the limit anew: what is awaited is seen to be at work."""
    self._end = time.monotonic() + self._limit_secs

  def is_over(self, what: str) -> bool:
    """Whether the time is up; meant to be asked repeatedly.

    Args:
      what: the end of 'waiting ...'.
    """
    now = Wait.last_look = time.monotonic()
    if now >= self._end:
      return True
    if now >= self._next_line:
      secs = now - self._start
      most = self._end - self._start
      of = '' if math.isinf(most) else f' of {most:.0f}'
      how_long = f' ({secs:.0f}{of} s)'
      _log.info(f'waiting {what}{how_long if self._has_logged else ""}')
      self._has_logged = True
      self._next_line = now + 5
    return False

  def choose_pause(self) -> float:
    """Returns the seconds until the next look.

    Hundreds of tasks that wait for a late one must neither cause a storm nor
    stay in step with each other.
    """
    least, most = _LOOK_SECS
    secs = min(most, max(least, (time.monotonic() - self._start) / 20))
    return secs * random.uniform(0.7, 1.0)


class Console:
  """Prints lines and one progress line.

  On a terminal the progress line is drawn over itself ten times a second;
  elsewhere it is a plain line every `every_secs`.
  """

  def __init__(
    self,
    every_secs: float = 2.0,
    stream: TextIO | None = None,
    draws: bool = True,
  ) -> None:
    """
    Args:
      every_secs: from one plain progress line to the next.
      stream: where to; by default sys.stdout.
      draws: whether progress may be drawn over itself: not where others print
        lines of their own.
    """
    self._stream = stream or sys.stdout
    self._is_terminal = draws and self._stream.isatty()
    self._every_secs = 0.1 if self._is_terminal else every_secs
    self._next_time = 0.0
    self._is_open = False

  def say(self, text: str) -> None:
    """Prints `text` as a line of its own."""
    self._write(('\n' if self._is_open else '') + text + '\n')
    self._is_open = False

  def is_due(self) -> bool:
    """Whether it is time for the next progress line."""
    return time.monotonic() >= self._next_time

  def progress(self, text: str, fraction: float | None) -> None:
    """Draws the progress line.

    Args:
      fraction: 0..1, how much of the work is done, for a bar before the text;
        None if nobody knows.
    """
    self._next_time = time.monotonic() + self._every_secs
    if not self._is_terminal:
      self.say(text)
      return
    bar = ''
    if fraction is not None:
      done = round(_BAR_WIDTH * min(1.0, fraction))
      bar = f'[{"#" * done}{"." * (_BAR_WIDTH - done)}] '
    self._write(f'\r\x1b[K{bar}{text}')
    self._is_open = True

  def _write(self, text: str) -> None:
    try:
      self._stream.write(text)
      self._stream.flush()
    except OSError as error:
      # On a full disk the line is lost, and not the training. Whoever closes a
      # pipe wants no more of the program, which its main thread ends.
      is_main = threading.current_thread() is threading.main_thread()
      if is_main and isinstance(error, BrokenPipeError):
        raise
