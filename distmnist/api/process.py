"""A program of distmnist as a process that ends with its caller."""

import collections
import contextlib
import os
import signal
import subprocess
import tempfile
import threading

from distmnist.common import child_program

_NUM_LINES = 50  # Those that an error shows.


class Error(Exception):
  """A program has failed; the text is what the failed task says.

  Attributes:
    exit_code: int.
    lines: list of str, the last lines printed.
  """

  def __init__(self, message, exit_code, lines):
    super().__init__(message)
    self.exit_code = exit_code
    self.lines = lines


class Process:
  """A running program of distmnist.

  As a context manager, it stops the program at the end of the context.

  Its methods may be called from any thread.
  """

  def __init__(self, program, words):
    """
    Args:
      program: 'launch' or 'sweep'.
      words: list of str, its words and flags and those of train, in any order.
    """
    self._lines = collections.deque(maxlen=_NUM_LINES)
    self._stop_lock = threading.Lock()
    # Not Thread.join: before Python 3.13, one that a Ctrl-C interrupts takes
    # the thread for ended from then on.
    self._has_ended = threading.Event()
    self._report = None
    folder = tempfile.TemporaryDirectory(prefix='distmnist_run_')
    words = [*words, *self._prepare(folder.name)]
    self._process, self._lifeline = child_program.start(
      program,
      words,
      env={'PYTHONUNBUFFERED': '1'},
      stdout=subprocess.PIPE,
      stderr=subprocess.STDOUT,
      encoding='utf-8',
      errors='replace',
    )
    threading.Thread(target=self._follow, args=[folder], daemon=True).start()

  def _prepare(self, folder):
    """Returns more flags (list of str); `folder` exists until the end."""
    raise NotImplementedError

  def _take(self, line):
    """Takes each line that the program prints."""
    raise NotImplementedError

  def _read(self, code):
    """Returns the result, given the exit code (int); None if it failed."""
    raise NotImplementedError

  def _follow(self, folder):
    """Reads what the program prints and, when it ends, its result."""
    with contextlib.ExitStack() as stack:
      stack.callback(self._has_ended.set)  # Called last, whatever fails.
      stack.enter_context(folder)
      stack.enter_context(self._process)
      for line in self._process.stdout:
        self._lines.append(line.rstrip('\n'))
        # A closed notebook is no reason to end.
        with contextlib.suppress(Exception):
          self._take(self._lines[-1])
      self._process.wait()
      os.close(self._lifeline)
      self._report = self._read(self._process.returncode)

  def status(self):
    """Returns 'running', 'done' or 'failed'."""
    if not self._has_ended.is_set():
      return 'running'
    return 'failed' if self._report is None else 'done'

  def stop(self):
    """Makes the program save a checkpoint, if it has a logdir, and end."""
    with self._stop_lock:
      if self._process.poll() is None:
        self._process.send_signal(signal.SIGTERM)
    self._has_ended.wait()

  def result(self, timeout=None):
    """Waits for the end and returns the report.

    Args:
      timeout: float, seconds, or None.

    Raises:
      Error: it has failed, or was stopped.
      TimeoutError: it is still running.
    """
    if not self._has_ended.wait(timeout):
      raise TimeoutError(f'the training still runs after {timeout:g} s')
    code, lines = self._process.returncode, list(self._lines)
    if self._report is None:
      raise Error(_find_sentence(lines, code), code, lines)
    return self._report

  def __enter__(self):
    return self

  def __exit__(self, *error):
    self.stop()


def _find_sentence(lines, code):
  """Returns the text (str) of the last line that reports an error."""
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
