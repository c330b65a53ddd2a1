"""The end of a run, as the user reads it, and its exit code.

The root cause comes last on the screen, and nothing after it.
"""

from __future__ import annotations

import logging
import re
import signal
import sys
from collections.abc import Iterable

from distmnist.common import cli, files
from distmnist.common.names import CHIEF
from distmnist.launching import jobs
from distmnist.launching.screen import task_logs, terminal
from distmnist.launching.supervisor import failures, task_group

_log = logging.getLogger(__name__)

_TITLES = {
  'data': 'the task that gets the data',
  'check': 'the task that checks the flags',
}


def say_killed(
  tasks: Iterable[jobs.Task], signum: int, is_cut_short: bool
) -> None:
  """Names the tasks that were killed.

  Args:
    signum: what told them to stop.
    is_cut_short: whether another signal then left them no time.
  """
  why = f'did not exit after {signal.Signals(signum).name}: killed'
  if is_cut_short:
    why = 'killed, as another signal came'
  for task in tasks:
    _log.info(f'{task.name} ({task.address}) {why}')


def report_failure(
  failure: failures.Failure, group: task_group.TaskGroup, logs_dir: str
) -> int:
  """Names the root cause of a group's failure; returns the exit code."""
  text, exit_code = show_failure(failure, group, logs_dir)
  _log.info(f'error: {text}')
  return exit_code


def show_failure(
  failure: failures.Failure, group: task_group.TaskGroup, logs_dir: str
) -> tuple[str, int]:
  """Shows the last lines of the task that is the root cause.

  Args:
    failure: the group's.

  Returns:
    One line on the failure, and the exit code.
  """
  failure = _find_root(failure, group)
  last_lines = group.last_lines(failure.task)
  cause = failure.cause
  task, times = failure.task, failure.num_restarts
  name = _TITLES.get(task.job_name, task.name)
  reason = task_logs.find_reason(last_lines)
  if reason and failure.code in cli.FINAL_CODES:
    if task.job_name == 'check':  # The user's own flags are at fault.
      return reason, failure.exit_code
    cause = reason  # It says all, in one line.
  else:
    _log.info(f'the last lines of {name}:')
    _print([f'  | {x}' for x in last_lines or ['(it has written nothing)']])
    if files.is_full(logs_dir):  # The reason did not fit into the log.
      cause += f', and the disk of {logs_dir} is full: make room there'
  when = (
    f'after {times} restart{"s" if times > 1 else ""}' if times else 'first'
  )
  log = task_logs.log_path(logs_dir, task)
  text = f'{name} ({task.address}) failed {when}: {cause}; log: {log}'
  return text, failure.exit_code


def report_signal(
  group: task_group.TaskGroup,
  signum: int,
  logs_dir: str,
  name: str | None = None,
) -> int:
  """Says what has stopped the run; returns the exit code.

  Args:
    group: stopped by this signal.
    name: that of what has sent the signal; None for the signal's own.

  Returns:
    128 + n after signal n; 75 if the chief could not save, or was killed
    before it said that it had.
  """
  say_stopped(name or signal.Signals(signum).name, logs_dir)
  code = report_saved(group, signum)
  end_logs(code, logs_dir)
  return code


def say_stopped(name: str, logs_dir: str) -> None:
  """Says what has stopped the run, and where its logs will stay."""
  is_kept = not task_logs.is_temporary(logs_dir)
  where = f', logs in {logs_dir}' if is_kept else ''
  _log.info(f'stopped by {name}{where}')


def end_logs(code: int, logs_dir: str) -> None:
  """Removes a temporary folder of logs, unless something was not saved.

  Args:
    code: the exit code of a run that has ended well or was stopped.
  """
  if code != cli.NOT_SAVED:
    task_logs.remove_if_temporary(logs_dir)
  elif task_logs.is_temporary(logs_dir):
    _log.info(f'logs in {logs_dir}')


def report_saved(group: task_group.TaskGroup, signum: int) -> int:
  """Says if steps may be lost; see `report_signal`, which does more."""
  chief = group.records.get(CHIEF)
  if not chief or not chief.has_lost_steps:
    return 128 + signum
  if chief.code == cli.NOT_SAVED:
    _print(group.last_lines(chief.task, 1))
  else:
    _log.info(
      f'{CHIEF} was {chief.failure.cause} before it said that all is saved:'
      ' what was trained since its newest checkpoint may be lost'
    )
  return cli.NOT_SAVED


def describe_late(
  task: jobs.Task, leave_secs: float, waited_for: str, logs_dir: str
) -> str:
  """Returns what to say of a task that had to be stopped.

  Args:
    leave_secs: how long it had.
    waited_for: the task whose end was the end of the training.
  """
  return (
    f'{task.name} ({task.address}) still ran {leave_secs:.0f} s after'
    f' {waited_for} had ended: stopped, as the training is complete; log: '
    f'{task_logs.log_path(logs_dir, task)}'
  )


def _print(lines: Iterable[str]) -> None:
  with terminal.may_close():
    for line in lines:
      print(line, file=sys.stderr, flush=True)


def _find_root(
  failure: failures.Failure, group: task_group.TaskGroup
) -> failures.Failure:
  """Returns the Failure that is the cause of the group's.

  A ps that leaves because a worker has failed may end before that worker does;
  it names the worker in its last line.
  """
  last_lines = group.last_lines(failure.task, 1)
  named = re.search(r'\b(worker|ps) \d+\b', ''.join(last_lines))
  record = group.records.get(named[0]) if named else None
  if failure.task.job_name == 'ps' and record and record.is_final:
    return record.failure
  return failure
