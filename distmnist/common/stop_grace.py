"""How long a task that is told to stop may take, and how long others wait.

A task forces its own exit --stop_grace_secs after the first signal. Whoever
sent that signal waits longer before killing it, so that the task has the last
word. All times are in seconds.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

from distmnist.common import cli, command_line
from distmnist.common.names import TRAIN

# The default of train's --stop_grace_secs: with all that comes after it, still
# less than the 10 s that `docker stop` gives.
DEFAULT_SECS = 8.0
MIN_SECS = 2.0
# A ps gives the chief less time than it has, so that it can say how that ended.
_SAID_SECS = 1.0
# A ps saves nothing, and is told to stop once the workers have left.
PS_SECS = 1.0


class _Job(Protocol):
  """What is asked of a launching.jobs.Job."""

  @property
  def given(self) -> tuple[str, ...]: ...

  @property
  def module(self) -> str: ...

  def flag(self, name: str) -> str | None: ...


def parse(words: Sequence[str]) -> float:
  """Returns the grace of tasks with these flags of train.

  Args:
    words: with each --flagfile read.

  Raises:
    cli.UsageError: it is not a number of seconds, or is below MIN_SECS.
  """
  text = command_line.find_value(words, 'stop_grace_secs')
  try:
    secs = DEFAULT_SECS if text is None else float(text)
  except ValueError:
    secs = 0.0
  if secs < MIN_SECS:
    raise cli.UsageError(
      f'--stop_grace_secs={text}: expected at least {MIN_SECS:g} seconds'
    )
  return secs


def choose(
  job: _Job, system_secs: float, margin_secs: float
) -> tuple[float, list[str]]:
  """Returns (grace, flags) for tasks that another system will kill.

  Args:
    job: a --stop_grace_secs among its flags of train is kept.
    system_secs: from the system's signal to its kill.
    margin_secs: how long before the kill the tasks must have left.

  Returns:
    The grace in seconds, and what is to precede the other flags of train.
  """
  if job.module != TRAIN or job.flag('stop_grace_secs') is not None:
    return parse(job.given), []
  secs = max(MIN_SECS, system_secs - margin_secs)
  return secs, [f'--stop_grace_secs={secs:g}']


def for_save(secs_left: float) -> float:
  """Returns how long a ps with `secs_left` waits for the chief's save."""
  return max(0.0, secs_left - _SAID_SECS)


def for_worker(grace_secs: float) -> float:
  """Returns the time from a launcher's signal to its kill."""
  return grace_secs + 0.5


def for_job(is_ps: bool, jobs: Collection[str], grace_secs: float) -> float:
  """Returns the time from a launcher's signal to its kill, for a kind of task.

  Args:
    jobs: the names of the jobs that this launcher runs. A launcher with only ps
      may stop them at the same time as the workers elsewhere.
  """
  if is_ps and set(jobs) != {'ps'}:
    return PS_SECS
  return for_worker(grace_secs)


def for_remote(grace_secs: float) -> float:
  """Returns the time from signal to kill on a host that lost its launcher."""
  return grace_secs + 1.0


def for_orphans(grace_secs: float) -> float:
  """Returns the time from signal to kill by a fork server left on its own."""
  return grace_secs + 2.0
