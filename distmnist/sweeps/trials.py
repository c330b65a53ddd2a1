"""The trials of a sweep, and what becomes of each.

DIR/trials/03/ holds a trial's run/ (train's --logdir) and its log. How it
stands is in the journal of the sweep (journal.py), which is told of each change
by the one who calls a method here.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import signal
from collections.abc import Callable, Iterable, Sequence
from typing import Any

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


# The outcome of a trial, and which values are valid: others may write to a
# sweep's folder if its owner lets them.
_OUTCOME: dict[str, Callable[[Any], bool]] = {
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
  """One training with one combination, and its results.

  Attributes:
    number: from 1.
    name: the number with leading zeros: its folder.
    combination: {flag: value}.
    folder: where its files are.
    state: one of the states above.
    secs: the time that all of its runs took.
    cause: why it failed or diverged.
    results: one for each rung that it has finished; see results.take.
    optuna_number: that of its latest Optuna trial; None until it runs.
    repeat: how many trials of the same combination have lower numbers.
    seed: what tells it from those; None if its combination has no other.
  """

  number: int
  name: str
  combination: dict[str, str]
  folder: str
  state: str = WAITING
  secs: float = 0.0
  cause: str = ''
  results: list[dict[str, Any]] = dataclasses.field(default_factory=list)
  optuna_number: int | None = None
  repeat: int = 0
  seed: int | None = None

  @property
  def flags(self) -> dict[str, str]:
    """{flag: value} of its combination, and its seed if it has one."""
    seed = {} if self.seed is None else {'seed': str(self.seed)}
    return self.combination | seed

  @property
  def logdir(self) -> str:
    return os.path.join(self.folder, 'run')

  @property
  def log(self) -> str:
    return os.path.join(self.folder, 'log')

  @property
  def result(self) -> dict[str, Any]:
    """The last of the results, {} if it has none."""
    return self.results[-1] if self.results else {}

  @property
  def outcome(self) -> dict[str, Any]:
    """What is to be known of it if the sweep goes on: state, secs, ..."""
    return {name: getattr(self, name) for name in _OUTCOME}

  def take_outcome(self, outcome: Any) -> None:
    """Takes over an `outcome` that was read from a file.

    Raises:
      ValueError: it was not written by a sweep.
    """
    if not isinstance(outcome, dict) or outcome.keys() != _OUTCOME.keys():
      raise ValueError(f'outcome {outcome!r:.60}')
    for name, is_valid in _OUTCOME.items():
      if not is_valid(outcome[name]):
        raise ValueError(f'{name} {outcome[name]!r:.60}')
      setattr(self, name, outcome[name])

  def is_over(self, num_rungs: int) -> bool:
    """Whether it has run as long as it ever will, unless it is retried."""
    is_out = self.state in (*LOST, DROPPED)
    return is_out or (self.state == DONE and len(self.results) == num_rungs)

  def begin(self) -> None:
    """Notes that it runs, and removes the report of a shorter run."""
    os.makedirs(self.folder, exist_ok=True)
    # If the logdir is not a folder, train says so.
    with contextlib.suppress(OSError):
      os.remove(self._report_path)
    self.state, self.cause = RUNNING, ''

  def has_ended_unseen(self) -> bool:
    """Whether it had ended when its sweep was killed, and nobody noted it.

    Its report is written last, and does not exist while it runs.
    """
    return self.state == RUNNING and os.path.exists(self._report_path)

  def end(
    self,
    code: int,
    secs: float,
    log_start: int,
    judge: str = results_lib.METRIC,
  ) -> None:
    """Notes the end of a run.

    Args:
      code: the exit code, or -n after signal n.
      secs: how long the run took.
      log_start: where the log of this run begins, in bytes.
      judge: a value of --judge.
    """
    self.secs = round(self.secs + secs, 2)
    if code == 0:
      self.take_report(judge)
      return
    self.state = STOPPED if code in _STOPPED_CODES else FAILED
    if self.state == FAILED:
      self.cause = find_cause(self.log, log_start, code)
      if cli.DIVERGED in self.cause:
        self.state = DIVERGED

  def stop(self, secs: float) -> None:
    """Notes that the run was stopped before its end, after `secs`."""
    self.secs, self.state = round(self.secs + secs, 2), STOPPED

  @property
  def _report_path(self) -> str:
    return os.path.join(self.logdir, 'report.json')

  def take_report(self, judge: str = results_lib.METRIC) -> None:
    """Notes the result that the report of its run gives, or that none does."""
    try:
      report = files.read_json(self._report_path)
      self.results.append(results_lib.take(report, judge))
      self.state = DONE
    except OSError as error:
      self.state, self.cause = FAILED, f'it has left no report: {error}'
    except (AttributeError, ValueError) as error:
      self.state = FAILED
      self.cause = f'its report is of no use: {error}'


def make_trials(
  combinations: Iterable[dict[str, str]],
  folder: str,
  seeds: Sequence[int | None] = (None,),
) -> list[Trial]:
  """Returns one for each seed of each combination."""
  each = [combination for combination in combinations for _ in seeds]
  return [
    make_trial(number, len(each), combination, folder, seeds)
    for number, combination in enumerate(each, 1)
  ]


def make_trial(
  number: int,
  num_trials: int,
  combination: dict[str, str],
  folder: str,
  seeds: Sequence[int | None] = (None,),
) -> Trial:
  """Returns Trial `number` of `num_trials`, in a folder of its own.

  Args:
    number: from 1; those of a combination follow each other.
    num_trials: how many the sweep will have.
    combination: {flag: value}.
    folder: that of all trials.
    seeds: that of each trial of a combination.
  """
  name = f'{number:0{max(2, len(str(num_trials)))}d}'
  repeat = (number - 1) % len(seeds)
  return Trial(
    *(number, name, combination, os.path.join(folder, name)),
    repeat=repeat,
    seed=seeds[repeat],
  )


def find_cause(log: str, start: int, code: int) -> str:
  """Returns why a run failed, as one line.

  This is the last error in its log, preferring a task's to the launcher's,
  which quotes the task's last lines; else the last line; else the exit code.

  Args:
    log: a path.
    start: where the log of this run begins, in bytes.
    code: the exit code, or -n after signal n.
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
