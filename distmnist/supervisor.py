"""Runs the tasks of a launcher to their end, before the eyes of the user."""

import os
import signal
import sys

from distmnist import processes
from distmnist import screen as screen_lib

LEAVE_SECS = 10.0


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
    explain: callable(processes.Failure, its last lines) -> str, the cause.
    **settings: more arguments of processes.Processes.

  Returns:
    int, 0 if all tasks ended with 0, or ended in another way once worker 0 had
    and after restarts; else the exit code of the first task that failed for
    good, 128 + n if it or this launcher got signal n; 1 for a task that did not
    leave within LEAVE_SECS, though nothing held it up.
  """
  workers = [task for task in tasks if task.job_name == 'worker']
  servers = [task for task in tasks if task.job_name == 'ps']
  processes.say(
    f'{len(servers)} ps and {len(workers)}'
    f' worker{"s" if len(workers) > 1 else ""} {where}, logs in {logs_dir}'
  )
  screen = screen_lib.make_screen(logs_dir, tasks, show_logs)

  def say_on_screen(text):
    screen.close_line()
    processes.say(text)

  max_restarts = settings.get('max_restarts', 0)
  with processes.Processes(
    tasks[0].module,
    logs_dir,
    os.environ,
    on_tick=screen.update,
    say=say_on_screen,
    **settings,
  ) as group:
    left = _get_data(group, data_task) if data_task else []
    if not left and not group.failure:
      for task in tasks:
        group.start(task)
      # With restarts the others may have lost what they need to end.
      last = workers[:1] if max_restarts else workers
      left = group.wait(last) or group.wait(tasks, LEAVE_SECS)
    signum = group.signals[0] if group.signals else None
    excused = [task for task in left if _is_excused(group, task, workers)]
    # A task knows SIGINT and SIGTERM; SIGHUP would end it with no checkpoint.
    passed_on = signum if signum == signal.SIGINT else signal.SIGTERM
    killed = group.stop(passed_on) if left else []
  screen.finish()
  is_late = not group.failure and not signum
  for task in killed:
    if not (is_late and task in excused):
      processes.say(
        f'{task.name} ({task.address}) did not leave when told to: killed'
      )
  if group.failure:
    lines = group.last_lines(group.failure.task)
    cause = explain(group.failure, lines)
    return _report(group.failure, cause, lines, logs_dir)
  if signum:
    processes.say(
      f'stopped by {signal.Signals(signum).name}, logs in {logs_dir}'
    )
    return 128 + signum
  waited_for = last[0].name if max_restarts else 'the last worker'
  late = [task for task in left if task not in excused]
  for task in excused + late:
    processes.say(
      f'{"error: " if task in late else ""}{task.name} ({task.address}) still'
      f' ran {LEAVE_SECS:.0f} s after {waited_for} had ended: stopped;'
      f' log: {processes.log_path(logs_dir, task)}'
    )
  return 1 if late else 0


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


def _report(failure, cause, last_lines, logs_dir):
  """Names the root cause, and nothing after it; returns the exit code."""
  task, times = failure.task, failure.num_restarts
  processes.say(f'the last lines of {task.name}:')
  for line in last_lines or ['(it has written nothing)']:
    print(f'  | {line}', file=sys.stderr)
  when = (
    f'after {times} restart{"s" if times > 1 else ""}' if times else 'first'
  )
  processes.say(
    f'error: {task.name} ({task.address}) failed {when}: {cause};'
    f' log: {processes.log_path(logs_dir, task)}'
  )
  return failure.exit_code
