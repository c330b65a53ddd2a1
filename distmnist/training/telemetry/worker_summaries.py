"""What a worker writes for TensorBoard about its steps, at intervals."""

from __future__ import annotations

import collections
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from absl import flags

from distmnist.common import names
from distmnist.logdir import report
from distmnist.tables import row_counts
from distmnist.training.telemetry import summaries

if TYPE_CHECKING:
  import tensorflow.compat.v1 as tf

_SUMMARY_STEPS = flags.DEFINE_integer(
  'summary_steps',
  100,
  'Local steps from one summary of a worker to the next.',
  lower_bound=1,
)


def period_from_flags() -> int:
  """Returns --summary_steps."""
  return _SUMMARY_STEPS.value


def from_flags(
  folder: str | None, learning_rate: tf.Tensor, metrics: Iterable[str]
) -> WorkerSummaries:
  """Returns the WorkerSummaries of a worker."""
  return WorkerSummaries(folder, _SUMMARY_STEPS.value, learning_rate, metrics)


class WorkerSummaries:
  """The summaries of one worker, in a folder of its own.

  Attributes:
    metrics: the names of the metrics of a step.
  """

  def __init__(
    self,
    folder: str | None,
    every_steps: int,
    learning_rate: tf.Tensor,
    metrics: Iterable[str] = (),
  ) -> None:
    """
    Args:
      folder: None for no summaries.
      every_steps: local steps from one summary to the next.
      learning_rate: float32 scalar tensor, at the current global step.
      metrics: names of the metrics of a step, such as 'accuracy'.
    """
    self._folder = folder
    self._every_steps = every_steps
    self._learning_rate = learning_rate
    self.metrics = list(metrics)
    self._next = 0
    self._is_new_session = True
    # (time, local steps) of the last summary.
    self._mark: tuple[float, int] | None = None
    self._shown_staleness: collections.Counter[int] = collections.Counter()
    self._writer: summaries.Writer | None = None

  def begin(self) -> None:
    if self._folder:
      self._writer = summaries.Writer(self._folder)

  def begin_session(self, step: int) -> None:
    """Begins a session at a global step, which may have gone back."""
    self._is_new_session = True
    if self._writer:
      self._writer.begin_session(step)

  def is_due(self, local_steps: int) -> bool:
    """Whether a run needs a summary that ends after `local_steps` steps.

    The first of each session does: what TensorBoard is to forget is told then.
    """
    is_due = self._is_new_session or local_steps >= self._next
    return self._writer is not None and is_due

  def write(
    self,
    values: Mapping[str, Any],
    stats: report.WorkerStats,
    session: tf.Session,
    now: float,
    own: bytes | None = None,
  ) -> None:
    """Writes the summary of a step.

    Args:
      values: {name: number}, with `global_step`, `loss` and the metrics.
      stats: already counts the step.
      session: to read the learning rate.
      now: from time.monotonic().
      own: what a script's own tf.summary ops have made.
    """
    writer = self._writer
    if not writer:
      return
    every = self._every_steps
    self._next = stats.local_steps - stats.local_steps % every + every
    self._is_new_session = False
    shown = {name: values[name] for name in ('loss', *self.metrics)}
    # Fetching it with the step would make another graph to prepare.
    shown['learning_rate'] = session.run(self._learning_rate)
    shown |= {
      name: getattr(stats, name)
      for name in ('local_steps', 'examples', 'bytes_pulled', 'bytes_pushed')
    }
    if self._mark:
      then, last_local = self._mark
      examples = (stats.local_steps - last_local) * stats.batch_size
      shown['examples_per_sec'] = examples / (now - then)
    self._mark = now, stats.local_steps
    rows = row_counts.choose(values)
    if rows.get(names.ROW_IDS):
      share = rows[names.ROWS_DIFFERENT] / rows[names.ROW_IDS]
      shown['rows/share_different'] = share
    shown |= rows
    if own:
      # One tag of both would be two points in one curve.
      tags = summaries.read_tags(own)
      shown = {n: x for n, x in shown.items() if n not in tags}
    writer.write_scalars(shown, values['global_step'])
    if own:
      writer.write_summary(own, values['global_step'])
    self._write_staleness(writer, stats, values['global_step'])

  def close(self, stats: report.WorkerStats, step: int | None) -> None:
    """Writes the staleness of the last steps.

    Args:
      step: the last global step, or None if there was none.
    """
    if self._writer is None:
      return
    if step is not None:
      self._write_staleness(self._writer, stats, step)
    self._writer.close()

  def _write_staleness(
    self, writer: summaries.Writer, stats: report.WorkerStats, step: int
  ) -> None:
    """Writes the staleness since the last time."""
    staleness = stats.staleness - self._shown_staleness
    if staleness:
      self._shown_staleness = stats.staleness.copy()
      mean = report.compute_mean(staleness)
      writer.write_histogram('staleness', staleness, step)
      writer.write_scalars({'staleness_mean': mean}, step)
