"""The log directory of a run, as one of its workers uses it.

Only the chief writes checkpoints there; the owner file names it. A run without
a --logdir has no folder, and all of this does nothing.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import tensorflow.compat.v1 as tf

from distmnist.common import cli, console, files, layout, store_check
from distmnist.common import owner as owner_lib
from distmnist.logdir import (
  checkpoints,
  logdirs,
  restart,
  run_data,
  run_flags,
)
from distmnist.nn import schedules
from distmnist.training import divergence, epoch_check, warm_start
from distmnist.training.problems import problem_source

if TYPE_CHECKING:
  import contextlib

  from distmnist.lifecycle import task as task_lib
  from distmnist.training import schedule
  from distmnist.training.problems import problem as problem_lib
  from distmnist.training.problems import problem_data

_log = logging.getLogger(__name__)


class RunFolder:
  """What a worker finds in the log directory, and what the chief keeps there.

  Attributes:
    path: --logdir.
    restart: where the run resumes from.
    images: on the chief, which images the run has; see run_data.describe.
    owner: on a chief that has claimed its folder; it has the path, too.
  """

  def __init__(
    self,
    task: task_lib.Task,
    is_last: Callable[[str, int, bool], bool] | int,
    splits: Sequence[problem_data.Examples] = (),
  ) -> None:
    """
    Args:
      is_last: where the run ends, see restart.Restart.
      splits: (train, validation), split.Splits; only with a problem.
    """
    self.path = logdirs.from_flags()
    self.restart = restart.from_flags(self.path, is_last, task.stalls.goes_on)
    self.images = ''
    self.owner: owner_lib.Owner | None = None
    self._task = task
    self._splits = splits
    self._problem: problem_lib.Problem | None = None

  @property
  def summary_dir(self) -> str | None:
    """The folder of this worker's summaries, or None."""
    name = f'worker {self._task.cluster.task_index}'
    return self.path and layout.metrics_dir(self.path, name)

  def claim(
    self,
    problem: problem_lib.Problem | None,
    at_end: contextlib.ExitStack,
    plan: schedule.Plan | None = None,
  ) -> None:
    """Chooses what the run resumes from, and takes sole use of the folder.

    Args:
      problem: None if the caller has a loss of its own.
      at_end: releases the folder.
      plan: with a problem.

    Raises:
      cli.RunError: no checkpoint there can be resumed from, or another run has
        the folder.
      stop_request.StoppedError: a signal came meanwhile.
    """
    task = self._task
    is_owned = task.cluster.is_chief
    store_check.check('logdir', self.path, is_owned=is_owned)
    if task.cluster.is_chief:
      self._check(problem)
      is_new = self.restart.is_new_run
      if is_new or not self.restart.find():
        warm_start.check(self.path, is_moved=is_new)
    path = self.path
    if path:
      self._write(lambda: logdirs.make(path))
      if task.cluster.is_chief:
        files.warn_of_owner('logdir', path)
        owner = at_end.enter_context(owner_lib.Owner('--logdir', path))
        self.owner = owner
        self._write(
          lambda: self.restart.take(owner, task.cluster, task.stop.wait)
        )
        logdirs.remove_abandoned(path)
    if task.cluster.is_chief:
      self._write(self.restart.prepare)
      changed = problem_source.find_change(problem, self.path, True)
      if changed:
        _log.info(changed)
      if path:
        self._tell_changes(path)
      if plan:
        self._check_epochs(plan)
      if path and not run_flags.are_kept(path):
        # At once: others who find the first checkpoint need them.
        self._write(lambda: write_run(path, self.images, problem))

  def _write(self, write: Callable[[], None]) -> None:
    """Calls write(), and again while the log directory cannot be written.

    Whoever makes room on a full disk, or brings a store back, has as long as a
    task that is not up.

    Args:
      write: doing it again must be harmless.

    Raises:
      cli.RunError: it cannot be written; cli.PassingError if that may pass.
      stop_request.StoppedError: a signal came meanwhile.
    """
    task = self._task
    wait = console.Wait(task.cluster.start_timeout_secs)
    while True:
      try:
        try:
          return write()
        except OSError as error:
          raise logdirs.not_written(str(self.path), error) from error
      except cli.PassingError as error:
        if wait.is_over(f'to try again: {error}'):
          raise
      task.stalls.goes_on()
      task.stop.wait(wait.choose_pause())

  def _tell_changes(self, logdir: str) -> None:
    """Logs which flags are not those that what the run goes on from had."""
    folder, since = logdir, 'the last life'
    if not run_flags.are_kept(folder):
      path = self.restart.find()
      if not path or not self.restart.is_of_other_run:
        return
      folder = os.path.dirname(path)
      since = f'the run in {folder}'
    changes = run_flags.find_changes(folder)
    if folder != logdir:
      changes.pop('resume', None)  # It is what names the folder.
    if changes:
      told = run_flags.describe_changes(changes)
      _log.info(f'changed since {since}: {told}')

  def _check_epochs(self, plan: schedule.Plan) -> None:
    """Checks that epochs can be counted, and says from where."""
    path = self.restart.find()
    epoch_check.check(path, plan, self.restart.is_of_other_run)
    if path and schedules.ends_with_training():
      last_step = plan.find_last_step(path, self.restart.is_of_other_run)
      if last_step != plan.last_step:
        raise cli.UsageError(
          'the rate of --lr_schedule falls up to the last step, and this run, '
          f'which has begun with another, ends at step {last_step}: give '
          f'--lr_decay_steps={last_step}'
        )
    if path and self.restart.is_of_other_run and plan.epochs is not None:
      step = checkpoints.read_step(path)
      end = plan.find_last_step(path, True)
      _log.info(
        f'a new run from step {step} of {path}: --epochs={float(plan.epochs):g}'
        f' from there on, up to step {end}'
      )

  def _check(self, problem: problem_lib.Problem | None) -> None:
    """Checks that the run in the folder, if any, can be resumed."""
    if not problem:
      self.images = 'what a loop of its own reads'
      self.restart.check(lambda path: None, self.images, [])
      return
    self._problem = problem
    self.images = run_data.describe(problem.unit, *self._splits)
    config = self._task.server_config
    check = divergence.CheckpointCheck(problem, self._splits[0], config)
    names = problem_source.flags_of_meaning(problem, self.path)
    self.restart.check(check.find, self.images, names)

  def sign(self) -> None:
    """Writes which life of the chief has the folder; call it when serving."""
    if not self.owner:
      return
    path, life = self.owner.folder, self._task.watchdog.life

    def write_again() -> None:  # What is written once, if it was removed.
      logdirs.sign(path, life)
      self.restart.write_again()
      write_run(path, self.images, self._problem)

    self._write(lambda: logdirs.sign(path, life))
    self.owner.keep(self._task.stop.give_up, write_again)

  def find_unreported(self) -> tuple[str, str] | None:
    """Returns what a chief that was lost before its report has left.

    Returns:
      (log directory, last checkpoint), for the chief that comes once the run
      has ended. None on another worker, and if all is reported.
    """
    if not self.owner or logdirs.has_ended(self.owner.folder):
      return None
    path = self.restart.find()
    return (self.owner.folder, path) if path else None


def write_run(
  logdir: str, images: str, problem: problem_lib.Problem | None, step: int = 0
) -> None:
  """Records in the log directory what the run was started with.

  Args:
    images: from run_data.describe.
    step: the global step from which on this counts.
  """
  run_flags.write(logdir, step)
  run_data.write(logdir, images)
  problem_source.keep(problem, logdir)


class FirstStep(tf.train.SessionRunHook):
  """Records in the log directory that a run begins or resumes, once it does.

  If the start fails, or the run is already at its end, what the last life left
  stays as it is.
  """

  def __init__(
    self,
    logdir: str | None,
    images: str,
    problem: problem_lib.Problem | None = None,
    find_step: Callable[[], int] = lambda: 0,
  ) -> None:
    """
    Args:
      logdir: None to record nothing.
      images, problem: see `write_run`.
      find_step: the global step at which the session began.
    """
    self._logdir, self._images, self._problem = logdir, images, problem
    self._find_step = find_step
    self._has_begun = False

  def before_run(self, run_context: tf.train.SessionRunContext) -> None:
    if self._logdir and not self._has_begun:
      step = self._find_step()
      write_run(self._logdir, self._images, self._problem, step)

  def after_run(
    self,
    run_context: tf.train.SessionRunContext,
    run_values: tf.train.SessionRunValues,
  ) -> None:
    if self._logdir and not self._has_begun:
      self._has_begun = True
      logdirs.remove_report(self._logdir)
