"""The trials of a sweep, and what the disk has of each.

DIR/trials/03/ has a trial's run/ (train's --logdir), its log, and trial.json,
which is written whole or not at all with each change of its state.
"""

import contextlib
import dataclasses
import math
import os
import signal

from distmnist.common import cli
from distmnist.sweeps import causes, json_files

WAITING = 'waiting'  # has never run
RUNNING = 'running'
DONE = 'done'
DROPPED = 'dropped'  # by halving: others were better
STOPPED = 'stopped'  # by a signal, and to be run again
FAILED = 'failed'
DIVERGED = 'diverged'
LOST = (FAILED, DIVERGED)

# What a trial's result has of train's report.json, beside the metric by which
# it is judged: 'judged_by', and what it was in validation and in the test.
_REPORTED = 'final_cost', 'global_step', 'images_per_sec'
_JUDGED_BY = '+accuracy'  # Where a report does not say.
_STATES = (WAITING, RUNNING, DONE, DROPPED, STOPPED, *LOST)
_STOPPED_CODES = (128 + signal.SIGINT, 128 + signal.SIGTERM, cli.NOT_SAVED)


def _is_number(value):
  return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_result(value):
  if not isinstance(value, dict):
    return False
  metric = value.get('judged_by', _JUDGED_BY)
  if not isinstance(metric, str) or metric[:1] not in ('+', '-'):
    return False
  known = *_REPORTED, *_name_metric(metric)
  return all(
    name == 'judged_by'
    or name in known
    and (number is None or _is_number(number))
    for name, number in value.items()
  )


def _name_metric(judged_by):
  return f'validation_{judged_by[1:]}', f'test_{judged_by[1:]}'


def read_metric(results):
  """Returns (key, sign) by which results of trials are compared.

  Args:
    results: list of dict.

  Returns:
    str, 'validation_' and the metric's name where all have it, else 'test_';
    int, 1 if more of it is better, -1 if less is.
  """
  metric = _JUDGED_BY
  for result in results:
    metric = result.get('judged_by', _JUDGED_BY)
  validation, test = _name_metric(metric)
  has_all = results and all(r.get(validation) is not None for r in results)
  return validation if has_all else test, 1 if metric[0] == '+' else -1


def _take_result(report):
  """Returns a trial's result of a report, a dict.

  Raises:
    ValueError: it lacks the metric by which it is to be judged.
  """
  metric = report.get('judged_by', _JUDGED_BY)
  result = {name: report.get(name) for name in _REPORTED}
  result |= {'judged_by': metric} if metric != _JUDGED_BY else {}
  for split in 'validation', 'test':
    found = report.get(f'{split}_metrics') or {}
    key = f'{split}_{metric[1:]}'
    result[key] = found.get(metric[1:], report.get(key))
  if result[key] is None:
    raise ValueError(f'it has no {key}')
  if not _is_result(result):
    raise ValueError(f'not all are numbers: {result}')
  return result


# What `load` takes over, and which values: others may write to a sweep's folder
# if its owner lets them.
_LOADED = {
  'state': lambda value: value in _STATES,
  'secs': lambda value: _is_number(value) and 0 <= value < math.inf,
  'cause': lambda value: isinstance(value, str),
  'results': lambda value: (
    isinstance(value, list) and all(map(_is_result, value))
  ),
}


@dataclasses.dataclass
class Trial:
  """One combination and its results.

  Attributes:
    number: int, from 1.
    name: str, the number with leading zeros: its folder.
    combination: {flag: value}, str.
    folder: str, where its files are.
    state: one of the states above.
    secs: float, the time that all of its runs have taken.
    cause: str, why it has failed or diverged.
    results: list of dict, one for each rung that it has finished; see
      _REPORTED and `read_metric`.
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
      cli.RunError: the file cannot be read, or `save` has not written it.
    """
    try:
      known = json_files.read(self._path)
    except FileNotFoundError:
      return
    except (OSError, ValueError) as error:
      raise self._bad_file(f'cannot be read ({error})') from error
    if not isinstance(known, dict):
      raise self._bad_file('is no JSON object')
    for name, is_valid in _LOADED.items():
      if name in known:
        if not is_valid(known[name]):
          raise self._bad_file(f'has {name} {known[name]!r:.60}')
        setattr(self, name, known[name])

  def _bad_file(self, what):
    return cli.RunError(
      f'{self._path} {what}: that was not written by a sweep; delete'
      f' {self.folder} to start the trial over'
    )

  def save(self):
    names = ('number', 'combination', 'state', 'secs', 'cause', 'results')
    json_files.write(self._path, {name: getattr(self, name) for name in names})

  def begin(self):
    """Notes that it runs, and removes the report of a shorter run."""
    os.makedirs(self.folder, exist_ok=True)
    # Where it is no folder, train says so.
    with contextlib.suppress(OSError):
      os.remove(self._report_path)
    self.state, self.cause = RUNNING, ''
    self.save()

  def note_if_ended(self):
    """Notes that it had ended when its sweep was killed, if it had.

    Its report is written last, and is not there while it runs.
    """
    if self.state == RUNNING and os.path.exists(self._report_path):
      self._take_report()

  def end(self, code, secs, log_start):
    """Notes the end of a run.

    Args:
      code: int, the exit code, or -n after signal n.
      secs: float, what the run has taken.
      log_start: int, where the log of this run begins, in bytes.
    """
    self.secs = round(self.secs + secs, 2)
    if code == 0:
      self._take_report()
      return
    self.state = STOPPED if code in _STOPPED_CODES else FAILED
    if self.state == FAILED:
      self.cause = causes.find(self.log, log_start, code)
      if cli.DIVERGED in self.cause:
        self.state = DIVERGED
    self.save()

  def stop(self, secs):
    """Notes that the run was killed, as it did not exit after SIGTERM."""
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
      report = json_files.read(self._report_path)
      self.results.append(_take_result(report))
      self.state = DONE
    except (AttributeError, OSError, ValueError) as error:
      self.state, self.cause = FAILED, f'it has left no report: {error}'
    self.save()


def make_trials(combinations, folder):
  """Returns a list of Trial, each in a folder of its own in `folder`, a str."""
  width = max(2, len(str(len(combinations))))
  trials = []
  for number, combination in enumerate(combinations, 1):
    name = f'{number:0{width}d}'
    path = os.path.join(folder, name)
    trials.append(Trial(number, name, combination, path))
  return trials
