"""Runs the trials of a sweep, rung by rung, several at a time."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import signal
import time
from collections.abc import Sequence
from typing import IO, TYPE_CHECKING

from distmnist.common import cli, files, signals, stop_grace
from distmnist.common.names import CHECK, TRAIN
from distmnist.sweeps import runners, search_space, tensorboard, trial_command
from distmnist.sweeps import trials as trials_lib

if TYPE_CHECKING:
  from distmnist.sweeps import halving, sweep_folder
  from distmnist.sweeps import journal as journal_lib
  from distmnist.sweeps import progress as progress_lib

_log = logging.getLogger(__name__)

# A launcher waits for its workers, then for the ps, then has to exit itself.
_LAUNCH_MARGIN_SECS = 4.5


class TrialLoop:
  """Runs the trials, rung by rung; without --halving there is one rung."""

  def __init__(
    self,
    command: trial_command.TrialCommand,
    journal: journal_lib.Journal,
    schedule: halving.Schedule,
    folder: sweep_folder.SweepFolder,
    progress: progress_lib.Progress,
    timeout_secs: float | None = None,
  ) -> None:
    """
    Args:
      schedule: of the trials of `journal`.
      timeout_secs: how long a trial may take each time it runs, or None.
    """
    self._command = command
    self._backend = command.backend
    self._journal = journal
    self._schedule = schedule
    self._folder = folder
    self._progress = progress
    self._secrets_path = folder.join('secret.flags')
    self._timeout_secs = timeout_secs or math.inf
    self._grace_secs = stop_grace.for_worker(command.spec.stop_grace_secs)
    self._grace_secs += _LAUNCH_MARGIN_SECS if command.is_launched else 0

  def run(self, lock: IO) -> int | None:
    """Runs the trials that are left.

    Args:
      lock: kept open by every process that is started.

    Returns:
      The signal that ended it, or None.

    Raises:
      cli.UsageError: a combination cannot work; no trial has started.
    """
    for trial in self._journal.trials:
      if trial.has_ended_unseen():
        trial.take_report(self._command.spec.judge)
        self._journal.save(trial)
    self._progress.say_start(self._backend.num_parallel)
    if not (self._schedule.find_next() or self._schedule.num_unknown):
      self._progress.write_hparams()
      return None
    secrets = contextlib.nullcontext()
    if words := self._command.secrets:
      secrets = files.private_file(self._secrets_path, '\n'.join(words))
    opened = self._backend.open_host(
      self._folder.path, lock, self._command.spec.stop_grace_secs
    )
    try:
      with secrets, opened as host:
        runner = runners.Runner(host, self._grace_secs)
        self._run_all(runner)
    except signals.SignalError as error:
      return error.signum  # before the first trial
    return runner.signals[0] if runner.signals else None

  def _run_all(self, runner: runners.Runner) -> None:
    if self._command.spec.module == TRAIN:
      check_combinations(
        runner, self._command, self._make_examples(), self._folder.path
      )
    if not runner.signals:
      self._journal.begin()
      self._progress.write_hparams()
    for rung in range(self._schedule.num_rungs):
      self._run_rung(runner, rung)
      if runner.signals:
        break
      if rung + 1 < self._schedule.num_rungs:
        self._drop_worst(rung)
    self._progress.write_hparams()

  def _make_examples(self) -> list[trials_lib.Trial]:
    """Returns the trials whose flags are checked before any trial runs."""
    examples = self._command.spec.find_examples()
    return trials_lib.make_trials(examples, self._folder.trials)

  def _drop_worst(self, rung: int) -> None:
    num_members = len(self._schedule.find_members(rung))
    num_best = len(self._schedule.find_members(rung + 1))
    for trial in self._schedule.choose_dropped(rung):
      trial.state = trials_lib.DROPPED
      self._journal.save(trial)
    _log.info(f'rung {rung + 1}: {num_best} of {num_members} go on')

  def _run_rung(self, runner: runners.Runner, rung: int) -> None:
    waiting = self._schedule.find_missing(rung)
    running: dict[str, tuple[trials_lib.Trial, int, int, float]] = {}
    slots = list(range(self._backend.num_parallel))
    unknown = self._schedule.num_unknown
    while (waiting or running or unknown) and not runner.signals:
      while (waiting or unknown) and slots:
        trial = waiting.pop(0) if waiting else self._journal.propose()
        slot, unknown = slots.pop(), self._schedule.num_unknown
        size = self._start(runner, trial, rung, slot)
        running[trial.name] = trial, slot, size, time.monotonic()
      for name, code in runner.wait():
        trial, slot, size, start = running.pop(name)
        slots.append(slot)
        secs = time.monotonic() - start
        trial.end(code, secs, size, self._command.spec.judge)
        self._journal.save(trial)
        self._progress.note(trial, rung)
    if not running:
      return
    _log.info(
      f'{signal.Signals(runner.signals[0]).name}: the trials save and stop'
    )
    for name, code in runner.stop():
      trial, _, size, start = running.pop(name)
      secs = time.monotonic() - start
      if code:
        trial.stop(secs)
      else:
        trial.end(code, secs, size, self._command.spec.judge)
      self._journal.save(trial)

  def _start(
    self,
    runner: runners.Runner,
    trial: trials_lib.Trial,
    rung: int,
    slot: int,
  ) -> int:
    """Starts a trial; returns the size of its log so far, in bytes."""
    argv = self._command.make(trial, rung, self._secrets_path, slot)
    env = self._command.env | self._backend.find_env(slot)
    try:
      trial.begin()
      self._journal.save(trial)
      tensorboard.forget(trial)
      return runner.start(
        runners.Command(
          *(trial.name, argv, trial.log, env, self._timeout_secs),
          logs_dir=self._command.find_logs_dir(trial),
        )
      )
    except OSError as error:
      raise cli.RunError(
        f'trial {trial.name} cannot be written: {error}'
      ) from error


def check_combinations(
  runner: runners.Runner,
  command: trial_command.TrialCommand,
  trials: Sequence[trials_lib.Trial],
  folder: str,
) -> None:
  """Has train check each trial's flags, all of them in one process.

  They are to fit each other, the data and the machine. Returns early if a
  signal comes.

  Args:
    runner: that of the trials.
    command: makes the flags of each.
    trials: what to check.
    folder: that of the sweep.

  Raises:
    cli.UsageError: names the first combination that cannot work.
    cli.RunError: the check itself has failed.
  """
  path, log = (os.path.join(folder, f'check.{end}') for end in ('json', 'log'))
  asked = {
    'num_ps': command.spec.num_ps,
    'num_workers': command.spec.num_workers,
    'needs_data': True,
    'flags': [command.make_train_flags(trial, 0) for trial in trials],
  }
  files.write_json(path, asked)
  argv = ['python', '-m', CHECK, path]
  start = runner.start(runners.Command('check', argv, log, command.env))
  ended = runner.wait()
  if not ended:
    runner.stop(grace_secs=0)
    return
  ((_, code),) = ended
  if code:
    cause = trials_lib.find_cause(log, start, code)
    raise cli.RunError(f'the trials cannot be checked: {cause}')
  mistakes = files.read_json(f'{path}.checked')
  for name in (path, log, f'{path}.checked'):
    os.remove(name)
  wrong = [pair for pair in zip(trials, mistakes, strict=True) if pair[1]]
  if wrong:
    trial, mistake = wrong[0]
    more = f' ({len(wrong)} of {len(trials)} cannot work)' * (len(wrong) > 1)
    raise cli.UsageError(
      f'no trial was started: with '
      f'{search_space.describe(trial.flags)}: {mistake}{more}'
    )
