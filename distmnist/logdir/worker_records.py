"""What each life of each worker has done: the last samples of its metrics.

A report covers a whole run, and a run may take many processes: it is resumed,
or a worker is killed and started again. The last line of each says what it did.
So a report sums up what `status`, the live table and report.html show. What a
killed process did after its last line is not known.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from distmnist.logdir import report
from distmnist.watching import metrics_file


def gather(
  logdir: str | None, present: Sequence[report.WorkerStats]
) -> tuple[list[report.WorkerStats], list[int]]:
  """Returns what is known of all lives of the run.

  Args:
    present: of the processes that are ending, by their own word.

  Returns:
    (lives, unknown): each worker's lives in order of start; and the workers
    whose earlier lives could not have been found, as they have no log directory
    or another one.
  """
  found = read(logdir, {stats.worker for stats in present}) if logdir else []
  known = {stats.life for stats in found}
  unknown = {
    stats.worker
    for stats in present
    if stats.life not in known and (stats.local_steps or not logdir)
  }
  here = {stats.life for stats in present}
  lives = [*present, *(stats for stats in found if stats.life not in here)]
  # A process that found all work done is no life, if there was another.
  busy = {stats.worker for stats in lives if stats.local_steps}
  lives = [s for s in lives if s.local_steps or s.worker not in busy]
  return sorted(lives, key=lambda s: (s.worker, s.start)), sorted(unknown)


def read(
  logdir: str, workers: Collection[int] = frozenset()
) -> list[report.WorkerStats]:
  """Returns what each life did that made a step, in no order.

  Args:
    workers: those that are known to have written there.
  """
  found = []
  for line in metrics_file.read_last_samples(logdir, 'worker', workers):
    try:
      stats = report.WorkerStats.from_line(line)
    except KeyError:
      continue  # Of a start that came to nothing.
    if stats.local_steps:
      found.append(stats)
  return found
