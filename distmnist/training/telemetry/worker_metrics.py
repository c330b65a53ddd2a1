"""What a worker reports about itself in metrics.jsonl."""

from __future__ import annotations

import collections
import time
from typing import TYPE_CHECKING, Any, Protocol

from distmnist.logdir import report
from distmnist.tables import row_counts

if TYPE_CHECKING:
  from distmnist.lifecycle import stalls as stalls_lib


class Progress(Protocol):
  """What hooks/progress.py knows of a worker's steps."""

  final_step: int | None
  final_loss: float | None
  last_values: dict[str, Any]
  unit: str

  @property
  def last_step(self) -> int | None: ...


class WorkerMetrics:
  """Collects the numbers of a worker, in the sampler's thread."""

  def __init__(
    self,
    stats: report.WorkerStats,
    progress: Progress,
    stalls: stalls_lib.Stalls,
    warn_secs: float,
  ) -> None:
    """
    Args:
      stats: the sums of this life.
      warn_secs: a worker without a step for this long is waiting.
    """
    self._stats = stats
    self._progress = progress
    self._stalls = stalls
    self._warn_secs = warn_secs
    self._shown_staleness: collections.Counter[int] = collections.Counter()
    # (time, examples) at the last sample.
    self._mark: tuple[float, int] | None = None

  def collect(self) -> dict[str, Any]:
    """Returns the fields of a sample."""
    stats, values = self._stats.copy(), self._progress.last_values
    known = {
      *('global_step', 'loss', 'staleness', 'bytes_pulled', 'bytes_pushed'),
      *row_counts.choose(values),
    }
    return {
      'state': self._find_state(stats),
      'step': self._find_step(stats),
      'last_step': self._progress.last_step,
      'unit': self._progress.unit,
      'examples_per_sec': self._compute_rate(stats.examples),
      'loss': self._progress.final_loss,
      'metrics': {n: x for n, x in values.items() if n not in known},
      'staleness_mean': self._compute_staleness(stats),
      # What this life did until now: the report sums the last line of each.
      **stats.to_fields(),
    }

  def _find_state(self, stats: report.WorkerStats) -> str:
    if stats.has_ended:
      return report.ENDING
    if self._progress.final_step is None:
      return 'starting'
    is_late = self._stalls.secs() >= self._warn_secs
    return 'waiting' if is_late else 'training'

  def _find_step(self, stats: report.WorkerStats) -> int | None:
    """Returns the last global step that was seen; None if none was."""
    if self._progress.final_step is not None or not stats.sessions:
      return self._progress.final_step
    return stats.sessions[-1][1]

  def _compute_rate(self, examples: int) -> float | None:
    """Returns examples per second since the last sample; None if unknown."""
    then, self._mark = self._mark, (time.monotonic(), examples)
    if not then or self._progress.final_step is None:
      return None
    return (examples - then[1]) / max(1e-9, self._mark[0] - then[0])

  def _compute_staleness(self, stats: report.WorkerStats) -> float | None:
    """Returns the mean staleness of the pushes since the last sample."""
    new = stats.staleness - self._shown_staleness
    self._shown_staleness = stats.staleness
    return report.compute_mean(new) if new else None
