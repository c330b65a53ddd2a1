"""Metrics of each new checkpoint of a run, for as long as it trains.

An evaluator knows the run only by its log directory. It is not part of the
cluster, and no task waits for it.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import tensorflow.compat.v1 as tf
from absl import flags

from distmnist.cluster import stop_request
from distmnist.common import cli, console, owner, store_check
from distmnist.common.names import CHIEF
from distmnist.logdir import (
  checkpoint_reader,
  checkpoints,
  logdirs,
  report_text,
  restart,
)
from distmnist.storage import urls
from distmnist.training import evaluation
from distmnist.training.problems import problem as problem_lib
from distmnist.training.problems import problem_data
from distmnist.watching import watched_run

if TYPE_CHECKING:
  from distmnist.lifecycle import task as task_lib
  from distmnist.watching import own_metrics

_log = logging.getLogger(__name__)

_CONTINUOUS_TIMEOUT_SECS = flags.DEFINE_float(
  'continuous_timeout_secs',
  600,
  'How long an evaluator that follows a run waits for the next checkpoint, in '
  'seconds.',
  lower_bound=0,
)
_LOOK_SECS = 0.2
_STORE_LOOK_SECS = 2.0  # Each look is a request that costs money.


def timeout_secs_from_flags() -> float:
  return _CONTINUOUS_TIMEOUT_SECS.value


def run_task(task: task_lib.Task) -> int:
  """Evaluates what the chief saves until the training has ended.

  Returns:
    The exit code.

  Raises:
    cli.UsageError: there is no --logdir.
    cli.PassingError: no checkpoint came within --continuous_timeout_secs, or
      one cannot be read; cli.LostError if some came before.
  """
  cluster, stop, stalls = task.cluster, task.stop, task.stalls
  logdir = logdirs.from_flags()
  if logdir is None:
    raise cli.UsageError(
      '--logdir is missing: an evaluator reads the checkpoints that the chief '
      'writes there, so give it to all tasks'
    )
  stalls.busy('the reading of the log directory')
  store_check.check('logdir', logdir, is_written=False)
  earlier = _Earlier(logdir)
  stalls.busy('the loading of the model and the data', may_fail=False)
  problem = problem_lib.from_flags()
  split_name, split = problem_data.load_judge(problem)
  evaluator = evaluation.Evaluator(
    problem,
    split,
    task.server_config,
    functools.partial(stalls.busy, 'the evaluation'),
  )

  def pause(secs: float) -> None:
    stalls.busy('the look for the next checkpoint')
    stop.wait(secs)

  secs = timeout_secs_from_flags()
  _log.info(f'{cluster.name} evaluates each new checkpoint in {logdir}')
  with contextlib.suppress(stop_request.StoppedError):
    secs_to_begin = cluster.start_timeout_secs
    stalls.busy('the wait for a chief', own_limit_secs=secs_to_begin)
    earlier.wait(secs_to_begin, stop)
    stalls.busy('the look for the next checkpoint')
    path = None
    with cli.amid_run():
      for path in follow(logdir, secs, pause):
        if line := describe_new(evaluator, path, split_name, task.metrics):
          _log.info(line)
    if not logdirs.has_ended(logdir):
      advice = (
        'see the log of worker 0, check that all tasks share this folder, or '
        'give more time by --continuous_timeout_secs'
      )
      if path is None:
        raise cli.PassingError(
          f'no checkpoint in --logdir={logdir} within {secs:g} s: {advice}'
        )
      raise cli.LostError(
        f'no checkpoint in --logdir={logdir} for {secs:g} s after {path}, and '
        f'the run has not ended: {advice}'
      )
    _log.info('the run has ended')
  return stop.end()


class _Earlier:
  """What an earlier run has left in the log directory, seen at the start.

  When this run's chief begins, it removes the report, and moves the checkpoints
  aside if it is to begin anew.
  """

  def __init__(self, logdir: str) -> None:
    self._logdir = logdir
    self._reported = logdirs.report_time(logdir)
    self._signed = logdirs.sign_time(logdir)
    is_new = restart.from_flags(logdir, is_last=0).is_new_run
    self._goes_aside = is_new and not owner.has_owner(logdir)
    self._run = watched_run.WatchedRun(logdir)

  def wait(self, timeout_secs: float, stop: stop_request.StopRequest) -> None:
    """Waits until it is gone, or will stay.

    Args:
      timeout_secs: the most to wait: this run may be over, too, if the
        evaluator comes too late.
    """
    wait, why = console.Wait(timeout_secs), 'has ended'
    if not self._reported:
      why = 'is an earlier one'
    while self._is_there():
      if wait.is_over(f'for a chief: the run in {self._logdir} {why}'):
        return
      stop.wait(_LOOK_SECS)

  def _is_there(self) -> bool:
    has_begun = logdirs.sign_time(self._logdir) != self._signed
    if self._goes_aside and not has_begun:
      return True
    report_time = logdirs.report_time(self._logdir)
    if not self._reported or report_time != self._reported:
      return False
    return not (has_begun and self._has_chief_ended())

  def _has_chief_ended(self) -> bool:
    """Whether the chief that signed has found nothing to do."""
    chief = self._run.look().tasks.get(CHIEF)
    end = chief and chief.end
    return bool(
      end and end['ok'] and logdirs.is_signed(self._logdir, end['life'])
    )


def follow(
  logdir: str, timeout_secs: float, pause: Callable[[float], None] = time.sleep
) -> Iterator[str]:
  """Yields each new checkpoint until the run has ended or no more come.

  Args:
    timeout_secs: the longest wait for a checkpoint, in seconds.
    pause: called with seconds between two looks.
  """
  seen = set()
  deadline = time.monotonic() + timeout_secs
  while True:
    # The last checkpoint comes before the end.
    is_last_look = logdirs.has_ended(logdir)
    for path in reversed(checkpoints.list_checkpoints(logdir)):
      if path not in seen:
        seen.add(path)
        yield path
        deadline = time.monotonic() + timeout_secs
    if is_last_look or time.monotonic() > deadline:
      return
    pause(_STORE_LOOK_SECS if urls.is_remote(logdir) else _LOOK_SECS)


def describe_new(
  evaluator: evaluation.Evaluator,
  path: str,
  split_name: str,
  metrics: own_metrics.OwnMetrics | None = None,
) -> str | None:
  """Returns a line as `describe` does, or None if the checkpoint is gone.

  That may happen to a slow evaluator: the chief keeps only the last ones.
  """
  # The last one, if partial, is replaced by a whole one: then it is read again.
  for is_last_try in (False, True):
    try:
      return describe(evaluator, path, split_name, metrics)
    except (cli.RunError, tf.errors.OpError, ValueError):
      if not checkpoint_reader.is_there(path):
        break
      if is_last_try:
        raise
  _log.info(f'{path} is gone, not evaluated: newer ones have taken its place')
  return None


def describe(
  evaluator: evaluation.Evaluator,
  path: str,
  split_name: str,
  metrics: own_metrics.OwnMetrics | None = None,
) -> str:
  """Returns a line on how good a checkpoint is.

  Args:
    path: the checkpoint.
    split_name: what it is evaluated on.
    metrics: to which the result is written.

  Raises:
    cli.RunError: it is unreadable or belongs to another model.
  """
  found = evaluator.compute_checkpoint(path)
  step = checkpoints.read_step(path)
  if metrics:
    metrics.write('evaluation', split=split_name, step=step, metrics=found)
  text = report_text.format_metrics(found)
  return f'step {step}  {split_name} {text}  {path}'
