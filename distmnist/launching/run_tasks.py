"""Runs the tasks of a launcher to their end, and shows them to the user."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence

from distmnist.common import signals as signals_lib
from distmnist.common import stop_grace
from distmnist.common.names import CHIEF, STOP
from distmnist.launching import host as host_lib
from distmnist.launching import jobs, run_record
from distmnist.launching.screen import screens, task_logs
from distmnist.launching.supervisor import endings, restart_policy, task_group

_log = logging.getLogger(__name__)

LEAVE_SECS = 10.0
# An evaluator still has the last checkpoint to evaluate.
_EVALUATE_SECS = 60.0
# With more tasks, only some pids are printed, and how to find the others.
_MAX_PIDS = 16


def run(
  tasks: list[jobs.Task],
  host: host_lib.Host,
  logs_dir: str,
  where: str,
  *,
  first_tasks: Sequence[jobs.Task] = (),
  show_logs: str = 'chief',
  limits: restart_policy.Limits = restart_policy.NO_LIMITS,
  stop_grace_secs: float = stop_grace.DEFAULT_SECS,
  record: run_record.RunRecord | None = None,
) -> int:
  """Runs `tasks` on a host to their end.

  The first task that fails for good stops the others, and is named last on the
  screen.

  Args:
    tasks: of one module; worker 0 is the chief.
    host: opened and closed here.
    logs_dir: an existing folder for one log per task.
    where: tells the user where they run.
    first_tasks: run to their end, side by side, before the others start, and in
      no namespace. The log of one stays only if it fails.
    show_logs: whose lines go to the screen: 'chief' or 'all'.
    limits: when a task restarts.
    stop_grace_secs: see TaskGroup.
    record: that of the launch.

  Returns:
    0 if all tasks ended with 0, or if worker 0 did and, with restarts,
    others then ended in another way; also if tasks had to be stopped that did
    not leave within LEAVE_SECS after that: the training is complete, and
    reported. Else the exit code of the first task that failed for good, 128 + n
    if it or this launcher got signal n, 75 if worker 0 then could not save.
  """
  task_logs.rotate(logs_dir, tasks)
  screen = screens.make(logs_dir, tasks, show_logs, record)
  _log.info(f'{describe(tasks)} {where}, logs in {logs_dir}')
  if record:
    record.begin(tasks, logs_dir)
  pids = PidLines([host.name, *(task.name for task in tasks)])
  group = task_group.TaskGroup(
    host,
    logs_dir,
    limits=limits,
    on_tick=screen.update,
    on_start=pids.note,
    stop_grace_secs=stop_grace_secs,
    record=record,
  )
  late, killed = [], []
  with group:
    left = _run_first(group, first_tasks)
    if not left and not group.failure:
      pids.note(host.name, host.pid, 1)
      left = late = run_to_end(group, tasks, limits)
    signum = group.signals[0] if group.signals else None
    if left:
      killed = group.stop(signals_lib.choose_passed_on(signum))
  screen.finish()
  if group.failure or signum:
    # A ps is stopped last, and the workers have saved what it holds.
    endings.say_killed(
      [task for task in killed if task.job_name == 'worker'],
      signals_lib.choose_passed_on(signum),
      group.is_cut_short,
    )
  if group.failure:
    return endings.report_failure(group.failure, group, logs_dir)
  if signum:
    is_asked = record and record.is_asked_to_stop
    return endings.report_signal(
      group, signum, logs_dir, STOP if is_asked else None
    )
  say_late(late, limits, logs_dir)
  if not late:
    task_logs.remove_if_temporary(logs_dir)
  return 0


def run_to_end(
  group: task_group.TaskGroup,
  tasks: list[jobs.Task],
  limits: restart_policy.Limits,
) -> list[jobs.Task]:
  """Starts all tasks; returns those that still run when the run is over.

  Args:
    tasks: worker 0 is the chief.
    limits: those of the group.
  """
  workers = [task for task in tasks if task.job_name == 'worker']
  members = [task for task in tasks if task.is_member]
  for task in tasks:
    group.start(task)
  left = group.wait(workers[:1] if _ends_with_chief(limits) else workers)
  left = left or group.wait(members, LEAVE_SECS)
  return left or group.wait(tasks, _EVALUATE_SECS)


def _ends_with_chief(limits: restart_policy.Limits) -> bool:
  # With restarts the others may have lost what they need to end.
  return bool(limits.max_restarts) or limits.min_workers is not None


def say_late(
  tasks: Iterable[jobs.Task], limits: restart_policy.Limits, logs_dir: str
) -> None:
  """Names tasks that were stopped, as the training was complete without them.

  Args:
    limits: those of the run.
  """
  waited_for = CHIEF if _ends_with_chief(limits) else 'the last worker'
  for task in tasks:
    secs = LEAVE_SECS if task.is_member else _EVALUATE_SECS
    _log.info(endings.describe_late(task, secs, waited_for, logs_dir))


def describe(tasks: Iterable[jobs.Task]) -> str:
  """Returns how many ps and workers there are."""
  names = [task.job_name for task in tasks]
  return jobs.describe_size(*map(names.count, ('ps', 'worker', 'evaluator')))


def _run_first(
  group: task_group.TaskGroup, tasks: Sequence[jobs.Task]
) -> list[jobs.Task]:
  """Runs the tasks before all others; returns those that still run."""
  for task in tasks:
    group.start(task)
  left = group.wait(tasks)
  if not left and not group.failure:
    for task in tasks:
      group.discard(task)
  return left


class PidLines:
  """Waits for the first pid of each process, then prints all in one line."""

  def __init__(self, names: Iterable[str]) -> None:
    self._missing = set(names)
    self._first: dict[str, int] = {}

  def note(self, name: str, pid: int | None, attempt: int) -> None:
    """Takes the pid of a task, or of its host, that has begun.

    None stands for a task elsewhere: then there is nothing here to be named.
    """
    if pid is None:
      self._missing.clear()
      return
    if attempt > 1:
      _log.info(f'{name} is pid {pid} now')
    if name not in self._missing:
      return
    self._missing.remove(name)
    self._first[name] = pid
    if not self._missing:
      self._log_all()

  def _log_all(self) -> None:
    shown = [f'{name} {pid}' for name, pid in self._first.items()]
    more = len(shown) - _MAX_PIDS
    if more > 0:
      shown[_MAX_PIDS:] = [f"{more} more: pgrep -af '^distmnist '"]
    _log.info(f'pids on this machine: {", ".join(shown)}')
