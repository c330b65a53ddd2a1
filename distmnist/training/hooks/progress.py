"""Counts the steps of a worker and prints its progress."""

from __future__ import annotations

import functools
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from distmnist.tables import row_counts
from distmnist.training.hooks import own_step_hook
from distmnist.training.telemetry import step_means
from distmnist.watching import own_metrics, process_bytes, table_text

if TYPE_CHECKING:
  import tensorflow.compat.v1 as tf

  from distmnist.common import console as console_lib
  from distmnist.exchange.steps import fused_steps
  from distmnist.logdir import report
  from distmnist.training.batches import batch_source
  from distmnist.training.telemetry import worker_summaries


class Progress:
  """Counts this worker's steps, prints progress and writes summaries.

  Attributes:
    final_step: the global step after the last run; None before the first.
    final_loss: loss of the last step.
    last_values: {name: number}, what was fetched from the last step.
    unit: what the examples are called.
  """

  def __init__(
    self,
    stats: report.WorkerStats,
    steps: fused_steps.Steps | own_step_hook.OwnStepHook,
    constants: Mapping[str, int],
    source: batch_source.BatchSource | own_step_hook.OwnBatches,
    console: console_lib.Console,
    summaries: worker_summaries.WorkerSummaries,
    unit: str = 'images',
    metrics: own_metrics.OwnMetrics | None = None,
  ) -> None:
    """
    Args:
      stats: filled in here.
      steps: with `global_step` (after the step), `loss` and, where they differ
        from step to step, `bytes_pulled`, `bytes_pushed` and `staleness`; for a
        run's last step its metrics, for summaries.
      constants: {name: number}, the values that stay the same.
      unit: what the examples are called.
    """
    self._steps = steps
    self._constants = constants
    self._stats = stats
    self._stats.batch_size = source.dealing.batch_size
    self._source = source
    self._console = console
    self._summaries = summaries
    self.unit = unit
    self._means = step_means.StepMeans(
      ('loss', *summaries.metrics),
      self._find_epoch,
      functools.partial((metrics or own_metrics.OwnMetrics()).write, 'means'),
    )
    self._sockets: process_bytes.Meter | None = None
    self._start = 0.0
    self._has_pace = False
    self._printed_steps = 0
    self.final_step: int | None = None
    self.final_loss: float | None = None
    self.last_values: dict[str, Any] = {}

  def begin(self) -> None:
    self._summaries.begin()

  def begin_session(self) -> None:
    # stop_hook.StopHook comes before, and has noted the session.
    if self._stats.sessions:
      self._summaries.begin_session(self._stats.sessions[-1][0])

  def count_run(self, session: tf.Session) -> bool:
    """Counts the steps of a run; prints and writes what is due.

    Returns:
      Whether a line was printed.
    """
    if not self._steps.done:
      return False  # A script has run something else.
    now, stats, before = time.monotonic(), self._stats, self.final_step
    with stats.lock:
      for fetched in self._steps.done:
        values = {**fetched, **self._constants}
        self._count(values)
        self._means.add(values)
    self.last_values, step = values, values['global_step']
    if before is None:
      self._start = now
      self._pace_mark = (now, step)
      self._mark = (now, step, stats.local_steps)
      self._sockets = process_bytes.Meter()
    else:
      stats.timed_steps += len(self._steps.done)
      # The center may have been set back to a checkpoint.
      updates = max(0, step - before)
      examples = updates * self._source.dealing.images_per_step
      stats.timed_examples_of_all += examples
    stats.train_secs = now - self._start
    if self._summaries.is_due(stats.local_steps):
      self._summaries.write(
        values, stats, session, now, self._steps.own_summary
      )
    if is_due := self._console.is_due():
      self._read_sockets()
      self._print(now, step)
    return is_due

  def _count(self, values: Mapping[str, Any]) -> None:
    """Counts a step whose `values` are {name: number}."""
    stats = self._stats
    self.final_loss = values['loss']
    self.final_step = values['global_step']
    stats.local_steps += 1
    stats.examples += self._source.dealing.batch_size
    stats.bytes_pulled += values['bytes_pulled']
    stats.bytes_pushed += values['bytes_pushed']
    # A step that pushed nothing has a staleness of -1, but may still have sent
    # gradients of rows (tables/tables_apart.py).
    staleness = values.get('staleness')
    if staleness is None:
      stats.pushes += bool(values['bytes_pushed'])
    elif staleness >= 0:
      stats.pushes += 1
      stats.staleness[staleness] += 1
    stats.rows.update(row_counts.choose(values))

  def _read_sockets(self) -> None:
    if self._sockets:
      moved = self._sockets.read() or (0, 0)
      self._stats.bytes_sent, self._stats.bytes_received = moved

  def end(self) -> None:
    """Prints the last step, and ends the summaries."""
    if self.final_step is not None:
      self._read_sockets()
      if self._printed_steps < self._stats.local_steps:
        self._print(time.monotonic(), self.final_step)
    self._means.flush()
    self._summaries.close(self._stats, self.final_step)

  @property
  def last_step(self) -> int | None:
    """The global step at which the training ends; None if only time ends it."""
    return self._source.dealing.known_last_step

  def _compute_secs_left(self, now: float, step: int) -> float | None:
    """Returns the seconds left, at the pace since the first call, or None."""
    then, then_step = self._pace_mark
    if step <= then_step:
      return None
    if not self._has_pace:
      # The first steps, between which graphs are built, tell little of others.
      self._pace_mark, self._has_pace = (now, step), True
      return None
    last_step = self.last_step
    if last_step is None:
      return None
    secs = (now - then) / (step - then_step)
    return max(0.0, secs * (last_step - step))

  def _find_epoch(self, step: int) -> int:
    """Returns in which epoch, from 1, the step that led to `step` began."""
    source = self._source
    if isinstance(source, own_step_hook.OwnBatches):
      return 1
    # Others may have gone beyond the end, which begins no epoch.
    first = min(step, self.last_step or step) - 1
    images = max(0, source.count_images(first))
    return 1 + images // source.images_per_epoch

  def _print(self, now: float, step: int) -> None:
    source, dealing = self._source, self._source.dealing
    then, then_step, then_local = self._mark
    if step != then_step:  # A round may take longer than from line to line.
      self._mark = (now, step, self._stats.local_steps)
    self._printed_steps = self._stats.local_steps
    had_pace, last = self._has_pace, self.last_step
    of_all = f'{step}' if last is None else f'{min(step, last)}/{last}'
    text = f'step {of_all}'
    if not isinstance(source, own_step_hook.OwnBatches):
      epoch = source.count_images(step) / source.images_per_epoch
      text += f'  epoch {epoch:.2f}'
    if dealing.batches_per_push > 1:
      text += f'  {self._stats.local_steps:,} local steps'
    text += f'  loss {self.final_loss:.4f}'
    if secs := self._compute_secs_left(now, step):
      text += f'  {table_text.format_secs(secs)} left'
    local_steps = self._stats.local_steps - then_local
    if had_pace and local_steps and step > then_step:
      rate = (step - then_step) * dealing.images_per_step / (now - then)
      text += (
        f'  {1000 * (now - then) / local_steps:.2f} ms/step'
        f'  {rate:,.0f} {self.unit}/s'
      )
    self._console.progress(text, None if last is None else step / last)
