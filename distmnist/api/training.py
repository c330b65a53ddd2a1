"""A training as a call: run waits for its end, start does not."""

import collections
import contextlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import threading
import types

from distmnist.common import lifeline
from distmnist.common.names import SORTED_LAUNCH

_NUM_LINES = 50  # That an error shows.


class Error(Exception):
  """A training that has failed; its text is what the task that failed says.

  Attributes:
    exit_code: int.
    lines: list of str, the last that were printed.
  """

  def __init__(self, message, exit_code, lines):
    super().__init__(message)
    self.exit_code = exit_code
    self.lines = lines


class Report(dict):
  """A run's report.json, whose entries are attributes as well.

  test_metrics is {name: float}; test_accuracy, global_step, images_per_sec and
  the others are those that docs/output.md explains.
  """

  def __getattr__(self, name):
    try:
      return self[name]
    except KeyError:
      raise AttributeError(f'a report has no {name!r}') from None

  @property
  def logdir(self):
    """str, the log directory, or None."""
    return self['flags'].get('logdir')


def run(problem=None, on_line=print, **settings):
  """Trains, and returns the Report.

    report = distmnist.run(problem='mine.py', strategy='easgd', num_workers=3)

  Args:
    problem: str, a file or a module as --problem takes it, or a module at hand;
      None for the images of `dataset`.
    on_line: callable(line), for each line that the training prints.
    **settings: flags of launch and train by their names: num_ps, num_workers,
      launcher, strategy, epochs, logdir, ... True and False stand for --name
      and --noname, a list for its items with commas.

  Raises:
    Error: a wrong setting, or the training has failed.
    KeyboardInterrupt: as it came; the training is stopped then.
  """
  with start(problem, on_line, **settings) as training:
    return training.result()


def start(problem=None, on_line=print, **settings):
  """Starts a training that runs beside the caller; see `run`.

  Returns:
    Training.

  Raises:
    ValueError: a launcher for other hosts, and no logdir.
  """
  words = make_words(problem, settings)
  if settings.get('launcher', 'local') == 'local':
    return Training(words, on_line)
  if not settings.get('logdir'):
    raise ValueError(
      f'launcher={settings["launcher"]!r} without logdir: expected a folder '
      'that all hosts and this machine see, where the report will be'
    )
  return Training(
    words, on_line, os.path.join(settings['logdir'], 'report.json')
  )


def make_words(problem, settings):
  """Returns the flags (list of str) of `run`'s arguments."""
  if isinstance(problem, types.ModuleType):
    problem = problem.__file__
  if problem is not None:
    settings = {'problem': os.fspath(problem), **settings}
  return [_make_word(n, v) for n, v in settings.items() if v is not None]


def _make_word(name, value):
  if isinstance(value, bool):
    return f'--{name}' if value else f'--no{name}'
  if isinstance(value, (list, tuple)):
    value = ','.join(map(str, value))
  return f'--{name}={value}'


class Training:
  """A training that runs; as a context manager it stops at the context's end.

  Its methods may be called from any thread.
  """

  def __init__(self, words, on_line, report_path=None):
    """
    Args:
      words: list of str, flags of launch and train.
      on_line: callable(line).
      report_path: str, where the report will be; by default it is written for
        this call, on this machine.
    """
    self._on_line = on_line
    self._lines = collections.deque(maxlen=_NUM_LINES)
    self._stop_lock = threading.Lock()
    self._report = None
    folder = tempfile.TemporaryDirectory(prefix='distmnist_run_')
    if not report_path:
      report_path = os.path.join(folder.name, 'report.json')
      words = [*words, f'--report_file={report_path}']
    reader, self._lifeline = os.pipe()
    try:
      self._process = subprocess.Popen(
        [sys.executable, '-m', SORTED_LAUNCH, *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding='utf-8',
        errors='replace',
        env={**os.environ, **lifeline.give(reader), 'PYTHONUNBUFFERED': '1'},
        pass_fds=[reader],
        start_new_session=True,  # Ctrl-C is the caller's; it then stops this.
      )
    finally:
      os.close(reader)
    self._thread = threading.Thread(
      target=self._follow, args=[folder, pathlib.Path(report_path)], daemon=True
    )
    self._thread.start()

  def _follow(self, folder, path):
    """Reads what the training says, and at its end the report."""
    with folder, self._process:
      for line in self._process.stdout:
        self._lines.append(line.rstrip('\n'))
        # A notebook that was closed is no reason to end.
        with contextlib.suppress(Exception):
          self._on_line(self._lines[-1])
      self._process.wait()
      os.close(self._lifeline)
      if not self._process.returncode and path.exists():
        self._report = Report(json.loads(path.read_text(encoding='utf-8')))

  def status(self):
    """Returns 'running', 'done' or 'failed'."""
    if self._thread.is_alive():
      return 'running'
    return 'failed' if self._report is None else 'done'

  def stop(self):
    """Has the training save a checkpoint, if it has a logdir, and end."""
    with self._stop_lock:
      if self._process.poll() is None:
        self._process.send_signal(signal.SIGTERM)
    self._thread.join()

  def result(self, timeout=None):
    """Waits for the end and returns the Report.

    Args:
      timeout: float, seconds, or None.

    Raises:
      Error: the training has failed, or was stopped.
      TimeoutError: it still runs.
    """
    self._thread.join(timeout)
    if self._thread.is_alive():
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
  """Returns what the last line of an error says, a str."""
  for line in reversed(lines):
    _, is_error, text = line.partition(': error: ')
    if is_error:
      return text
  return f'the training has ended with exit code {code}'
