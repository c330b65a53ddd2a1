"""How often tasks ask a task that all ask: the more tasks, the less often.

The heartbeats of all tasks go to one of them, and all workers look for their
marks on each ps. The load on one task must not grow with the cluster.
"""

from __future__ import annotations

import math

# Questions to one task per second, from all tasks together.
_QUESTIONS_PER_SEC = 25


def compute_interval_secs(
  num_tasks: int, least_secs: float, most_secs: float = math.inf
) -> float:
  """Returns the seconds between two questions of each of `num_tasks` tasks.

  Args:
    num_tasks: the tasks that ask.
    least_secs: the interval in a small cluster.
    most_secs: the interval is never longer, however many tasks ask.
  """
  return min(max(least_secs, num_tasks / _QUESTIONS_PER_SEC), most_secs)
