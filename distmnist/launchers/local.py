"""Runs all tasks on this machine.

The chief's lines go to the screen as they come, everybody's to a log file
each. The chief writes to its file alone and we read along: a slow screen or
a launcher that dies can neither stop the chief nor lose a line.
"""

import os
import shutil
import signal
import sys

from distmnist import processes

PS_LEAVE_SECS = 10.0


def launch(tasks, logs_dir, held_ports=(), fork_tasks=True):
  """Runs `tasks` to their end.

  The first task that fails stops the others, and is named last on the screen.

  Args:
    tasks: list of tasks.Task, all of this machine; worker 0 is the chief.
    logs_dir: str, an existing folder for one log a task.
    held_ports: list of sockets in the order of `tasks`, from
      processes.hold_ports; closed here once the tasks have them.
    fork_tasks: bool, see processes.Processes.

  Returns:
    int, 0 if all tasks ended with 0; else the exit code of the first task that
    failed, 128 + n if it or this launcher got signal n; 1 for a ps that did
    not leave within PS_LEAVE_SECS of the last worker.
  """
  workers = [task for task in tasks if task.job_name == 'worker']
  servers = [task for task in tasks if task.job_name == 'ps']
  _say(
    f'{len(servers)} ps and {len(workers)}'
    f' worker{"s" if len(workers) > 1 else ""} on this machine,'
    f' logs in {logs_dir}'
  )
  screen = Screen(processes.log_path(logs_dir, workers[0]))
  with processes.Processes(
    tasks[0].module, logs_dir, os.environ, fork_tasks, on_tick=screen.update
  ) as group:
    for index, task in enumerate(tasks):
      group.start(task, held_ports[index] if held_ports else None)
    left = group.wait(workers) or group.wait(servers, PS_LEAVE_SECS)
    signum = group.signals[0] if group.signals else None
    # A task knows SIGINT and SIGTERM; SIGHUP would end it with no checkpoint.
    passed_on = signum if signum == signal.SIGINT else signal.SIGTERM
    killed = group.stop(passed_on) if left else []
  screen.finish()
  for task in killed:
    _say(f'{task.name} ({task.address}) did not leave when told to: killed')
  if group.failure:
    return _report(group.failure, logs_dir, group.last_lines)
  if signum:
    _say(f'stopped by {signal.Signals(signum).name}, logs in {logs_dir}')
    return 128 + signum
  for task in left:
    _say(
      f'error: {task.name} ({task.address}) still ran {PS_LEAVE_SECS:.0f} s'
      ' after the last worker had ended: stopped;'
      f' log: {processes.log_path(logs_dir, task)}'
    )
  return 1 if left else 0


def _report(failure, logs_dir, last_lines):
  """Names the root cause, and nothing after it; returns the exit code."""
  task = failure.task
  _say(f'the last lines of {task.name}:')
  for line in last_lines(task) or ['(it has written nothing)']:
    print(f'  | {line}', file=sys.stderr)
  _say(
    f'error: {task.name} ({task.address}) failed first: {failure.cause};'
    f' log: {processes.log_path(logs_dir, task)}'
  )
  return failure.exit_code


def _say(text):
  # Ours goes to stderr: stdout carries the lines of the chief alone.
  print(f'distmnist.launch: {text}', file=sys.stderr, flush=True)


class Screen:
  """Shows a log as it grows; on a terminal its `step` lines share one line."""

  def __init__(self, path, out=None):
    """Opens the log, which may not exist yet; lines that it has are old.

    Args:
      path: str, the log.
      out: text file, stdout by default.
    """
    self._log = open(path, 'a+b')  # noqa: SIM115 (follows it all our life)
    self._out = out or sys.stdout
    self._rest = b''
    self._is_line_open = False

  def update(self):
    """Shows the lines that were completed since the last call."""
    *lines, self._rest = (self._rest + self._log.read()).split(b'\n')
    for line in lines:
      self._show(line.decode(errors='replace'))
    if lines:
      self._out.flush()

  def finish(self):
    """Shows what is left, a last line without its end too."""
    self.update()
    if self._rest:
      self._show(self._rest.decode(errors='replace'))
    self._close_line()
    self._out.flush()
    self._log.close()

  def _show(self, line):
    if self._out.isatty() and line.startswith('step '):
      # A line that wraps could not be redrawn.
      width = shutil.get_terminal_size().columns - 1
      self._out.write(f'\r{line[:width]}\x1b[K')
      self._is_line_open = True
    else:
      self._close_line()
      self._out.write(line + '\n')

  def _close_line(self):
    if self._is_line_open:
      self._out.write('\n')
      self._is_line_open = False
