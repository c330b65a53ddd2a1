"""How often a task may restart, and how long it waits before that. Pure."""

import dataclasses
import math

# From a failure to the restart: doubles with each restart, and starts over
# after a task has run for STEADY_SECS.
FIRST_BACKOFF_SECS = 0.1
MAX_BACKOFF_SECS = 10.0
STEADY_SECS = 60.0


@dataclasses.dataclass(frozen=True)
class Limits:
  """How many failures a run tolerates.

  Attributes:
    max_restarts: int, of each task within `window_secs`.
    window_secs: float, seconds; 0 counts over the whole run.
    min_workers: int, with how many workers the run still goes on, the chief
      included; None ends it with the first task that is lost for good.
    restart_together: bool, whether a task restarts only with all others, once
      they have left in order; `max_restarts` then counts for all together.
  """

  max_restarts: int = 0
  window_secs: float = 0.0
  min_workers: int | None = None
  restart_together: bool = False


NO_LIMITS = Limits()


def from_job(job):
  """Returns the Limits that a jobs.Job asks for."""
  return Limits(job.max_restarts, job.restart_window_secs, job.min_workers)


class Budget:
  """The restarts of one task, or of the fork server."""

  def __init__(self, limits):
    self._limits = limits
    self._times = []
    self._backoff_secs = FIRST_BACKOFF_SECS
    self.total = 0

  def take(self, start_time, now):
    """Returns (number within the window, seconds to wait); None if spent."""
    window_secs = self._limits.window_secs or math.inf
    self._times = [t for t in self._times if now - t < window_secs]
    if len(self._times) >= self._limits.max_restarts:
      return None
    if now - start_time >= STEADY_SECS:
      self._backoff_secs = FIRST_BACKOFF_SECS
    secs = self._backoff_secs
    self._backoff_secs = min(MAX_BACKOFF_SECS, 2 * secs)
    self._times.append(now)
    self.total += 1
    return len(self._times), secs
