"""A program of distmnist as a process that ends with its caller."""

from __future__ import annotations

import collections
import contextlib
import os
import re
import signal
import subprocess
import threading
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from distmnist.common import child_program

_NUM_LINES = 50  # Those that an error shows.
_ERROR = re.compile(r'distmnist\.(launch|sweep): error: ')
THIS_MACHINE = None, 'local'  # Values of --launcher.


class Error(Exception):
  """A program has failed; the text is what the failed task says.

  Attributes:
    exit_code: of the program.
    lines: the last ones that it has printed.
  """

  def __init__(self, message: str, exit_code: int, lines: list[str]) -> None:
    super().__init__(message)
    self.exit_code = exit_code
    self.lines = lines


def make_words(
  problem: str | os.PathLike | types.ModuleType | None,
  settings: Mapping[str, Any],
) -> list[str]:
  """Returns the flags that a call's arguments stand for.

  A flagfile comes first: what the call itself says wins, in whatever order.

  Args:
    problem: see training.run.
    settings: True and False stand for --name and --noname, a list for its items
      joined by commas, None for no flag.
  """
  if isinstance(problem, types.ModuleType):
    problem = problem.__file__
  if problem is not None:
    settings = {'problem': os.fspath(problem), **settings}
  words = [_make_word(n, v) for n, v in settings.items() if v is not None]
  return sorted(words, key=lambda word: not word.startswith('--flagfile='))


def _make_word(name: str, value: object) -> str:
  if isinstance(value, bool):
    return f'--{name}' if value else f'--no{name}'
  if isinstance(value, (list, tuple)):
    value = ','.join(map(str, value))
  return f'--{name}={value}'


def read_flags(words: Iterable[str]) -> dict[str, str]:
  """Returns the values of the flags among `words`, also those of flag files.

  A flag file that cannot be read has none, which the program will say.
  """
  from distmnist.common import command_line  # noqa: PLC0415  Needs absl.

  with contextlib.suppress(command_line.FlagFileError):
    words = command_line.expand(words)
  found = [word.lstrip('-').partition('=') for word in words if word[:1] == '-']
  return {name: value for name, _, value in found}


def check_is_shared(
  given: Mapping[str, str], folder: object, name: str
) -> None:
  """Raises ValueError for tasks on other hosts without a folder.

  Args:
    given: see `read_flags`.
    folder: a path, or None.
    name: what the caller calls the folder.
  """
  far = None
  if given.get('launcher') not in THIS_MACHINE:
    far = 'launcher'
  elif given.get('runner') == 'spark':  # Of a sweep.
    far = None if given.get('master', '').startswith('local') else 'runner'
  if far and not folder:
    raise ValueError(
      f'{far}={given[far]!r} without {name}: expected a folder, for the '
      'report, that all hosts and this machine share'
    )


def without_error(take: Callable[[str], object]) -> Callable[[str], object]:
  """Returns `take` for all lines but the error, which an exception will say."""

  def take_others(line: str) -> None:
    if not _ERROR.match(line):
      take(line)

  return take_others


class Process:
  """A running launch or sweep, as distmnist.start returns it.

  As a context manager, it stops the program at the end of the context. Its
  methods may be called from any thread.
  """

  def __init__(
    self,
    program: str,
    words: Sequence[str],
    take: Callable[[str], object],
    read: Callable[[int], object],
    folder: contextlib.AbstractContextManager | None = None,
    reword: Callable[[str], str | None] = str,
  ) -> None:
    """Starts it.

    Args:
      program: 'launch' or 'sweep'.
      words: its words and flags and those of train, in any order.
      take: called with each line that it prints.
      read: called at the end, with the exit code; gives the result, None if it
        failed.
      folder: what is to be closed once the result is read.
      reword: gives each line as it is taken, or None for none.
    """
    self._take, self._read, self._reword = take, read, reword
    self._lines: collections.deque[str] = collections.deque(maxlen=_NUM_LINES)
    self._stop_lock = threading.Lock()
    # Not Thread.join: before Python 3.13, one that a Ctrl-C interrupts takes
    # the thread for ended from then on.
    self._has_ended = threading.Event()
    self._result: object = None
    self._process, self._lifeline = child_program.start(
      program,
      words,
      env={'PYTHONUNBUFFERED': '1'},
      stdout=subprocess.PIPE,
      stderr=subprocess.STDOUT,
      encoding='utf-8',
      errors='replace',
    )
    threading.Thread(
      target=self._follow,
      args=[folder or contextlib.nullcontext()],
      daemon=True,
    ).start()

  def _follow(self, folder: contextlib.AbstractContextManager) -> None:
    """Reads what the program prints and, when it ends, its result."""
    with contextlib.ExitStack() as stack:
      stack.callback(self._has_ended.set)  # Called last, whatever fails.
      stack.enter_context(folder)
      stack.enter_context(self._process)
      for line in self._process.stdout or ():
        if (line := self._reword(line.rstrip('\n'))) is None:
          continue
        self._lines.append(line)
        # A closed notebook is no reason to end.
        with contextlib.suppress(Exception):
          self._take(self._lines[-1])
      self._process.wait()
      os.close(self._lifeline)
      self._result = self._read(self._process.returncode)

  def status(self) -> str:
    """Returns 'running', 'done' or 'failed'."""
    if not self._has_ended.is_set():
      return 'running'
    return 'failed' if self._result is None else 'done'

  def stop(self) -> None:
    """Makes the program save a checkpoint, if it has a logdir, and end."""
    with self._stop_lock:
      if self._process.poll() is None:
        self._process.send_signal(signal.SIGTERM)
    self._has_ended.wait()

  def result(self, timeout: float | None = None) -> Any:
    """Waits for the end, for so many seconds at most; returns the report.

    Raises:
      Error: it has failed, or was stopped.
      TimeoutError: it is still running.
    """
    if not self._has_ended.wait(timeout):
      raise TimeoutError(f'the training still runs after {timeout:g} s')
    code, lines = self._process.returncode, list(self._lines)
    if self._result is None:
      raise Error(_find_sentence(lines, code), code, lines)
    return self._result

  def __enter__(self) -> Process:
    return self

  def __exit__(self, *_: object) -> None:
    self.stop()


def _find_sentence(lines: Sequence[str], code: int) -> str:
  """Returns the text of the last line that reports an error."""
  for line in reversed(lines):
    _, is_error, text = line.partition(': error: ')
    if is_error:
      return text
  if not code:
    return (
      'nothing was trained, and there is no report: dry_run, help, '
      'download_only and the like are for python -m distmnist.launch'
    )
  return f'the training has ended with exit code {code}'
