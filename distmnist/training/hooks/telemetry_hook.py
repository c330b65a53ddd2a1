"""What a worker counts, prints and writes of its steps, in order."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import tensorflow.compat.v1 as tf

if TYPE_CHECKING:
  from distmnist.logdir import report
  from distmnist.training.hooks import progress as progress_lib
  from distmnist.training.hooks import tracer as tracer_lib
  from distmnist.transport import nonfinite as nonfinite_lib
  from distmnist.watching import own_metrics


class TelemetryHook(tf.train.SessionRunHook):
  """Counts a step before it is shown, and has a sample of it written.

  The first step has one, so that of each life that made one something is known,
  and each printed line: what a killed worker has shown is in its metrics.
  """

  def __init__(
    self,
    stats: report.WorkerStats,
    progress: progress_lib.Progress,
    nonfinite: nonfinite_lib.Counter,
    metrics: own_metrics.OwnMetrics,
    tracer: tracer_lib.Tracer | None,
    check_folder: Callable[[], None],
  ) -> None:
    """
    Args:
      stats: in which the others count.
      metrics: own_metrics.OwnMetrics of this process.
      check_folder: called in the first session, when the chief has signed its
        log directory.
    """
    self._stats, self._progress, self._nonfinite = stats, progress, nonfinite
    self._metrics, self._tracer = metrics, tracer
    self._check_folder = check_folder
    self._is_checked = self._has_run = False

  def begin(self) -> None:
    self._progress.begin()
    self._nonfinite.build()

  def after_create_session(
    self, session: tf.Session, coord: tf.train.Coordinator
  ) -> None:
    self._progress.begin_session()
    if not self._is_checked:
      self._is_checked = True
      self._check_folder()

  def before_run(
    self, run_context: tf.train.SessionRunContext
  ) -> tf.train.SessionRunArgs | None:
    return self._tracer.choose_args() if self._tracer else None

  def after_run(
    self,
    run_context: tf.train.SessionRunContext,
    run_values: tf.train.SessionRunValues,
  ) -> None:
    is_shown = self._progress.count_run(run_context.session)
    self._nonfinite.look_if_due(run_context.session)
    if not self._has_run and self._progress.final_step is not None:
      self._has_run = True
      self._metrics.sample()
    elif is_shown:
      self._metrics.sample_if_due()
    if self._tracer:
      self._tracer.write(run_values)

  def end(self, session: tf.Session) -> None:
    self._progress.end()
    self._nonfinite.look(session)
    self._stats.has_ended = True
    self._metrics.sample()
    if self._tracer:
      self._tracer.end()
