"""The trials of a sweep, and what is on disk for each.

DIR/trials/03/ holds a trial's run/ (train's --logdir), its log, and trial.json,
which is written, whole or not at all, at each change of its state.
"""

import contextlib
import dataclasses
import os
import re
import signal

from distmnist.common import cli, files
from distmnist.common.names import LAUNCH
from distmnist.launching.screen import task_logs
from distmnist.launching.supervisor import failures
from distmnist.sweeps import results as results_lib

WAITING = 'waiting'  # has never run
RUNNING = 'running'
DONE = 'done'
DROPPED = 'dropped'  # by halving: others were better
STOPPED = 'stopped'  # by a signal, and to be run again
FAILED = 'failed'
DIVERGED = 'diverged'
LOST = (FAILED, DIVERGED)

_STATES = (WAITING, RUNNING, DONE, DROPPED, STOPPED, *LOST)
_STOPPED_CODES = (128 + signal.SIGINT, 128 + signal.SIGTERM, cli.NOT_SAVED)


# What `load` takes over, and which values are valid: others may write to a
# sweep's folder if its owner lets them.
_LOADED = {
  'state': lambda value: value in _STATES,
  'secs': lambda value: results_lib.is_number(value) and value >= 0,
  'cause': lambda value: isinstance(value, str) and '\n' not in value,
  'results': lambda value: (
    isinstance(value, list) and all(map(results_lib.is_result, value))
  ),
}
_LAUNCH_ERROR = re.compile(rf'{LAUNCH}: error: .* failed .*?: (.*); log')
# All lines of the tail that is read: a line has at least one byte.
_NUM_LINES = 1 << 14


@dataclasses.dataclass
class Trial:
  """One combination and its results.

  Attributes:
    number: int, from 1.
    name: str, the number with leading zeros: its folder.
    combination: {flag: value}, str.
    folder: str, where its files are.
    state: one of the states above.
    secs: float, the time that all of its runs took.
    cause: str, why it failed or diverged.
    results: list of dict, one for each rung that it has finished; see
      results.py.
  """

  number: int
  name: str
  combination: dict
  folder: str
  state: str = WAITING
  secs: float = 0.0
  cause: str = ''
  results: list = dataclasses.field(default_factory=list)

  @property
  def logdir(self):
    return os.path.join(self.folder, 'run')

  @property
  def log(self):
    return os.path.join(self.folder, 'log')

  @property
  def result(self):
    """The last of the results, {} if it has none."""
    return self.results[-1] if self.results else {}

  @property
  def _path(self):
    return os.path.join(self.folder, 'trial.json')

  def load(self):
    """Takes over the outcome of earlier runs, and nothing else.

    Raises:
      cli.RunError: the file cannot be read, or was not written by `save`.
    """
    known = self.read() or {}
    for name, is_valid in _LOADED.items():
      if name in known:
        if not is_valid(known[name]):
          raise self.bad_file(f'has {name} {known[name]!r:.60}')
        setattr(self, name, known[name])

  def read(self):
    """Returns the content of its file, a dict; None if there is no file.

    Raises:
      cli.RunError: the file cannot be read, or was not written by `save`.
    """
    try:
      known = files.read_json(self._path)
    except FileNotFoundError:
      return None
    except (OSError, ValueError) as error:
      raise self.bad_file(f'cannot be read ({error})') from error
    if not isinstance(known, dict):
      raise self.bad_file('is no JSON object')
    return known

  def bad_file(self, what):
    """Returns the cli.RunError for a file that `save` did not write."""
    return cli.RunError(
      f'{self._path} {what}: that was not written by a sweep; delete'
      f' {self.folder} to start the trial over'
    )

  def save(self):
    names = ('number', 'combination', 'state', 'secs', 'cause', 'results')
    files.write_json(self._path, {name: getattr(self, name) for name in names})

  def begin(self):
    """Notes that it runs, and removes the report of a shorter run."""
    os.makedirs(self.folder, exist_ok=True)
    # If the logdir is not a folder, train says so.
    with contextlib.suppress(OSError):
      os.remove(self._report_path)
    self.state, self.cause = RUNNING, ''
    self.save()

  def note_if_ended(self):
    """Notes that it had ended when its sweep was killed, if it had.

    Its report is written last, and does not exist while it runs.
    """
    if self.state == RUNNING and os.path.exists(self._report_path):
      self._take_report()

  def end(self, code, secs, log_start):
    """Notes the end of a run.

    Args:
      code: int, the exit code, or -n after signal n.
      secs: float, how long the run took.
      log_start: int, where the log of this run begins, in bytes.
    """
    self.secs = round(self.secs + secs, 2)
    if code == 0:
      self._take_report()
      return
    self.state = STOPPED if code in _STOPPED_CODES else FAILED
    if self.state == FAILED:
      self.cause = find_cause(self.log, log_start, code)
      if cli.DIVERGED in self.cause:
        self.state = DIVERGED
    self.save()

  def stop(self, secs):
    """Notes that the run was stopped before its end."""
    self.secs, self.state = round(self.secs + secs, 2), STOPPED
    self.save()

  def drop(self):
    self.state = DROPPED
    self.save()

  @property
  def _report_path(self):
    return os.path.join(self.logdir, 'report.json')

  def _take_report(self):
    try:
      report = files.read_json(self._report_path)
      self.results.append(results_lib.take(report))
      self.state = DONE
    except (AttributeError, OSError, ValueError) as error:
      self.state, self.cause = FAILED, f'it has left no report: {error}'
    self.save()


def make_trials(combinations, folder):
  """Returns a list of Trials, each in its own folder within `folder` (str)."""
  return [
    make_trial(number, len(combinations), combination, folder)
    for number, combination in enumerate(combinations, 1)
  ]


def make_trial(number, num_trials, combination, folder):
  """Returns Trial `number` of `num_trials`, in its own folder."""
  name = f'{number:0{max(2, len(str(num_trials)))}d}'
  return Trial(number, name, combination, os.path.join(folder, name))


def find_cause(log, start, code):
  """Returns why a run failed, as one line (str).

  This is the last error in its log, preferring a task's to the launcher's,
  which quotes the task's last lines; else the last line; else the exit code.

  Args:
    log: str, a path.
    start: int, where the log of this run begins, in bytes.
    code: int, the exit code, or -n after signal n.
  """
  ending = failures.describe_end(code)
  with contextlib.suppress(OSError):
    tail = task_logs.read_last_lines(log, start, _NUM_LINES)
    lines = [line.strip(' |') for line in tail]
    for line in reversed(lines):
      match = cli.ERROR_LINE.match(line)
      if match and match[1] != 'launch':
        return match[2]
      match = _LAUNCH_ERROR.match(line)
      if match and not re.match('exit code|killed by', match[1]):
        return match[1]
    if lines and code > 0:
      return f'{lines[-1]} ({ending})'
  return ending
