"""What a sweep shows and writes, while it runs and at its end."""

from __future__ import annotations

import contextlib
import logging
import os
import shlex
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from distmnist.common import cli
from distmnist.common.names import SWEEP
from distmnist.launching.screen import terminal
from distmnist.sweeps import groups as groups_lib
from distmnist.sweeps import (
  plot,
  ranking,
  results,
  search_space,
  table,
  tensorboard,
)
from distmnist.sweeps import trials as trials_lib

if TYPE_CHECKING:
  from distmnist.sweeps import halving

_log = logging.getLogger(__name__)

CSV, PLOT = 'results.csv', 'results'
# With --repeats, a row per trial; results.csv has one per combination.
TRIALS_CSV = 'trials.csv'


def print_line(text: object) -> None:
  """Prints a line of the sweep's own to stderr: stdout has only the table."""
  with terminal.may_close():
    print(f'{SWEEP}: {text}', file=sys.stderr, flush=True)


class Progress:
  """Keeps the results of a sweep up to date, and says how trials end."""

  def __init__(self, schedule: halving.Schedule, folder: str) -> None:
    """
    Args:
      schedule: of its trials.
      folder: that of the sweep.
    """
    self._schedule = schedule
    self._trials = schedule.trials
    self._folder = folder
    self._has_tensorboard = True
    self._writer: tensorboard.Writer | None = None

  def say_start(self, num_parallel: int) -> None:
    """Says what is left to run, `num_parallel` at a time."""
    schedule = self._schedule
    num_left = len(schedule.find_next()) + schedule.num_unknown
    num_trials = schedule.num_trials
    text = f'{num_trials} trials in {self._folder}, {num_parallel} at a time'
    if schedule.repeats > 1:
      text += f'; of each combination {schedule.repeats}, with different seeds'
    if not num_left:
      text += '; all have ended'
    elif num_left < num_trials:
      text += f'; {num_left} {"is" if num_left == 1 else "are"} left to run'
    _log.info(text)
    try:
      plot.check_ready()
    except ImportError as error:
      _log.info(
        f'no picture will be drawn: {error}; pip install matplotlib, or'
        ' distmnist[plots], at any time: the same command draws it'
      )

  def note(self, trial: trials_lib.Trial, rung: int) -> None:
    """Says how a trial has ended, and updates the results at once."""
    schedule = self._schedule
    text = search_space.describe(trial.flags)
    if schedule.num_rungs > 1:
      text += f' (rung {rung + 1} of {schedule.num_rungs})'
    outcome, _, _ = trial.cause.partition(';')
    if trial.state == trials_lib.DONE:
      by = ranking.find_ranking([trial])
      value = format(trial.result[by], table.choose_spec(by))
      outcome = f'{results.describe(by)} {value}'
    _log.info(
      f'{schedule.count_ended(rung)} of '
      f'{len(schedule.find_members(rung)) + schedule.num_unknown}: '
      f'trial {trial.name} {trial.state} after {trial.secs:.1f} s: {text}: '
      f'{outcome}'
    )
    self._write_csv()
    self.write_hparams()

  def _write_csv(self) -> str:
    """Writes the results; returns the path of results.csv."""
    path = os.path.join(self._folder, CSV)
    table.write_csv(groups_lib.by_combination(self._trials), path)
    if self._schedule.repeats > 1:
      each = groups_lib.by_trial(self._trials)
      table.write_csv(each, os.path.join(self._folder, TRIALS_CSV))
    return path

  def write_hparams(self) -> None:
    """Writes for TensorBoard what has not been written yet.

    Nothing is written before the first result, which says by which metric
    trials are judged, and before all trials, and so all values, are known.
    """
    is_known = (
      any(t.results for t in self._trials) and not self._schedule.num_unknown
    )
    try:
      if self._has_tensorboard and self._writer is None and is_known:
        self._writer = tensorboard.Writer(self._trials, self._folder)
    except ImportError as error:
      self._has_tensorboard = False
      _log.info(f'nothing for TensorBoard: {error}; pip install tensorboard')
    if self._writer:
      for trial in self._trials:
        if trial.is_over(self._schedule.num_rungs):
          self._writer.write(trial)

  def show(self) -> None:
    """Prints the table, and writes the results."""
    trials = self._trials
    if all(trial.state == trials_lib.WAITING for trial in trials):
      return
    groups = groups_lib.by_combination(trials)
    with terminal.may_close():
      print(*table.format_lines(groups), sep='\n', flush=True)
    written = self._write_csv()
    if any(trial.results for trial in trials):
      with contextlib.suppress(ImportError):  # The start has told of it.
        path = os.path.join(self._folder, PLOT)
        plot.write(groups, path)
        written += f' and {path}.{{{",".join(plot.KINDS)}}}'
    self._say_best(ranking.rank(groups))
    _log.info(f'results in {written}')

  def _say_best(self, ranked: list[groups_lib.Group]) -> None:
    best, by = ranked[0], ranking.find_ranking(self._trials)
    if trials_lib.DONE not in best.states:
      return
    if trials_lib.DIVERGED in best.states:  # And so have all the others.
      return
    waits = trials_lib.WAITING, trials_lib.RUNNING, trials_lib.STOPPED
    is_over = not (
      self._schedule.num_unknown
      or any(trial.state in waits for trial in self._trials)
    )
    if sum(bool(group.results) for group in ranked) < 2 and not is_over:
      return  # Nothing to compare it with, yet.
    spec, is_one = table.choose_spec(by), len(best.trials) == 1
    text = f'best by {results.describe(by)}: trial{"" if is_one else "s"}'
    text += f' {best.name}, {shlex.join(search_space.to_flags(best.flags))}'
    if (deviation := best.deviation(by)) is not None:
      text += f': {best.mean(by):{spec}} ± {deviation:{spec}}'
      text += f' (n = {len(best.results)})'
    _log.info(text)
    if rival := ranking.find_rival(ranked):
      _log.info(
        f'trials {rival.name} ({search_space.describe(rival.flags)}) may be as'
        f' good: {rival.mean(by):{spec}} ± {rival.deviation(by):{spec}} differs'
        ' by less than twice the standard error; more --repeats would tell'
      )
    if seen := ranking.find_unequal_examples(ranked):
      _log.info(
        f'these combinations have seen {seen[0]:,.0f} to {seen[1]:,.0f}'
        ' examples: to compare them after as many, let --epochs end each, not'
        ' --train_steps'
      )


def check_complete(trials: Sequence[trials_lib.Trial]) -> None:
  """Raises cli.RunError naming the first trial that failed, or was stopped."""
  failed = [t for t in trials if t.state == trials_lib.FAILED]
  stopped = [t for t in trials if t.state == trials_lib.STOPPED]
  for state, found, advice in (
    ('failed', failed, 'once repaired, --retry_failed runs it again'),
    ('was stopped', stopped, 'the same command goes on with it'),
  ):
    if found:
      first = found[0]
      cause = f': {first.cause}' if first.cause else ''
      more = f', the first of {len(found)} that did' if len(found) > 1 else ''
      raise cli.RunError(
        f'trial {first.name} ({search_space.describe(first.flags)}) '
        f'{state}{more}{cause}; log: {first.log}; {advice}'
      )
