"""Runs the tasks of a launcher to their end, before the eyes of the user."""

import os
import re
import signal
import sys

from distmnist import cli, fork_client, processes, restarts, task_logs
from distmnist import screen as screen_lib

LEAVE_SECS = 10.0
_DATA_TITLE = 'the task that gets the data'
# Of more tasks the pids of some are printed, and how to find the others.
_MAX_PIDS = 16
# As cli.run has it.
_ERROR = re.compile(r'distmnist\.\w+: error: (.*)')


def run(
  tasks,
  logs_dir,
  where,
  data_task=None,
  show_logs='chief',
  explain=lambda failure, last_lines: failure.cause,
  **settings,
):
  """Runs `tasks` to their end.

  The first task that fails for good stops the others, and is named last on the
  screen.

  Args:
    tasks: list of tasks.Task with one module; worker 0 is the chief.
    logs_dir: str, an existing folder for one log a task.
    where: str, says to the user where they run.
    data_task: tasks.Task that runs to its end before the others start, in no
      namespace, or None. Its log stays only if it fails.
    show_logs: str, whose lines go to the screen: 'chief' or 'all'.
    explain: callable(restarts.Failure, its last lines) -> str, the cause.
    **settings: more arguments of processes.Processes.

  Returns:
    int, 0 if all tasks ended with 0, or ended in another way once worker 0 had
    and after restarts; else the exit code of the first task that failed for
    good, 128 + n if it or this launcher got signal n, 75 if worker 0 then could
    not save; 1 for a task that did not leave within LEAVE_SECS, though nothing
    held it up.
  """
  workers = [task for task in tasks if task.job_name == 'worker']
  servers = [task for task in tasks if task.job_name == 'ps']
  processes.say(
    f'{len(servers)} ps and {len(workers)}'
    f' worker{"s" if len(workers) > 1 else ""} {where}, logs in {logs_dir}'
  )
  task_logs.rotate(logs_dir, tasks)
  screen = screen_lib.make_screen(logs_dir, tasks, show_logs)

  def say_on_screen(text):
    screen.close_line()
    processes.say(text)

  limits = settings.get('limits', restarts.NO_LIMITS)
  ends_with_chief = limits.max_restarts or limits.min_workers is not None
  pids = _Pids(tasks, say_on_screen)
  with processes.Processes(
    tasks[0].module,
    logs_dir,
    os.environ,
    on_tick=screen.update,
    on_start=pids.note,
    say=say_on_screen,
    **settings,
  ) as group:
    left = _get_data(group, data_task) if data_task else []
    if not left and not group.failure:
      pids.note(fork_client.SERVER_NAME, group.server_pid, 1)
      for task in tasks:
        group.start(task)
      # With restarts the others may have lost what they need to end.
      last = workers[:1] if ends_with_chief else workers
      left = group.wait(last) or group.wait(tasks, LEAVE_SECS)
    signum = group.signals[0] if group.signals else None
    excused = [task for task in left if _is_excused(group, task, workers)]
    # A task knows SIGINT and SIGTERM; SIGHUP would end it with no checkpoint.
    passed_on = signum if signum == signal.SIGINT else signal.SIGTERM
    killed = group.stop(passed_on) if left else []
  screen.finish()
  is_late = not group.failure and not signum
  for task in killed:
    # A ps is told last, and what it holds the workers have saved.
    if task in workers and not (is_late and task in excused):
      processes.say(
        f'{task.name} ({task.address}) did not leave when told to: killed'
      )
  if group.failure:
    failure = _find_root(group)
    lines = group.last_lines(failure.task)
    return _report(failure, explain(failure, lines), lines, logs_dir)
  if signum:
    processes.say(
      f'stopped by {signal.Signals(signum).name}, logs in {logs_dir}'
    )
    if any(map(group.has_lost_steps, workers[:1])):
      print(*group.last_lines(workers[0], 1), sep='\n', file=sys.stderr)
      return cli.NOT_SAVED
    return 128 + signum
  waited_for = last[0].name if ends_with_chief else 'the last worker'
  late = [task for task in left if task not in excused]
  for task in excused + late:
    processes.say(
      f'{"error: " if task in late else ""}{task.name} ({task.address}) still'
      f' ran {LEAVE_SECS:.0f} s after {waited_for} had ended: stopped;'
      f' log: {task_logs.log_path(logs_dir, task)}'
    )
  if late:
    return 1
  task_logs.remove_if_temporary(logs_dir)
  return 0


def _get_data(group, data_task):
  """Runs the task that gets the data; returns it in a list if it still runs."""
  group.start(data_task)
  left = group.wait([data_task])
  if not left and not group.failure:
    group.discard(data_task)
  return left


def _is_excused(group, task, workers):
  """Whether a task may be late: a restart can cost it what tells it to leave.

  A ps leaves once every worker has told it to.
  """
  if group.is_restarted(task):
    return True
  return task.job_name == 'ps' and not all(map(group.is_done, workers))


class _Pids:
  """Tells which process is which task, so that any can be looked at."""

  def __init__(self, tasks, say):
    self._missing = {fork_client.SERVER_NAME, *(task.name for task in tasks)}
    self._first = {}
    self._say = say

  def note(self, name, pid, attempt):
    """Takes the pid of a task, or of the fork server, that has begun."""
    if attempt > 1:
      self._say(f'{name} is pid {pid} now')
    if name not in self._missing:
      return
    self._missing.remove(name)
    self._first[name] = pid
    if not self._missing:
      self._say_all()

  def _say_all(self):
    shown = [f'{name} {pid}' for name, pid in self._first.items()]
    more = len(shown) - _MAX_PIDS
    if more > 0:
      shown[_MAX_PIDS:] = [f"{more} more: pgrep -af '^distmnist '"]
    self._say(f'pids on this machine: {", ".join(shown)}')


def _find_root(group):
  """Returns the Failure that is the cause of `group.failure`.

  A ps that leaves because a worker has failed may end before that worker does,
  and names it in its last line.
  """
  failure = group.failure
  last_lines = group.last_lines(failure.task, 1)
  named = re.search(r'\b(worker|ps) \d+\b', ''.join(last_lines))
  if failure.task.job_name == 'ps' and named:
    return group.find_failure(named[0]) or failure
  return failure


def _report(failure, cause, last_lines, logs_dir):
  """Names the root cause, and nothing after it; returns the exit code."""
  task, times = failure.task, failure.num_restarts
  name = _DATA_TITLE if task.job_name == 'data' else task.name
  said = _ERROR.fullmatch(last_lines[-1]) if last_lines else None
  if said and failure.code in restarts.FINAL_CODES:
    cause = said[1]  # It says all, in one line.
  else:
    processes.say(f'the last lines of {name}:')
    for line in last_lines or ['(it has written nothing)']:
      print(f'  | {line}', file=sys.stderr)
  when = (
    f'after {times} restart{"s" if times > 1 else ""}' if times else 'first'
  )
  processes.say(
    f'error: {name} ({task.address}) failed {when}: {cause};'
    f' log: {task_logs.log_path(logs_dir, task)}'
  )
  return failure.exit_code
