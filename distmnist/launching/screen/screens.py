"""What a launcher shows while its tasks run: their lines, and maybe a table."""

import os
import sys

from absl import flags

from distmnist.common import cli, console
from distmnist.common.names import CHIEF
from distmnist.launching import run_record
from distmnist.launching.screen import log_view, table_screen, task_logs
from distmnist.storage import urls

_LIVE_TABLE = flags.DEFINE_enum(
  'live_table',
  'auto',
  ['auto', 'on', 'off'],
  'Draw a table of all tasks below the lines of the run, twice a second. auto:'
  ' where stdout is a terminal and the run has a --logdir.',
)


def make(logs_dir, tasks, show_logs):
  """Returns the Screen of `tasks`, on which our own lines are shown as well.

  Args:
    logs_dir: str, the folder of their logs.
    tasks: list of jobs.Task.
    show_logs: 'chief' for its lines as they are, 'all' for the lines of every
      task, each after the task's name.
  """
  logs = {
    '' if show_logs == 'chief' else f'[{task.name}] ': task_logs.log_path(
      logs_dir, task
    )
    for task in tasks
    if show_logs == 'all' or task.name == CHIEF
  }
  logdir = run_record.find_logdir()
  # What a store has of a run is some seconds old, and each look costs money.
  is_here = logdir and not urls.is_remote(logdir)
  if is_here and _wants_table(_LIVE_TABLE.value):
    screen = table_screen.TableScreen(logs, logdir)
  else:
    screen = log_view.Screen(logs)
  console.print_logs(screen.print_line)
  return screen


def check_flags(launcher, logdir, show_logs='chief', no_wait=None):
  """Refuses what could not be shown.

  Args:
    launcher: str, its name.
    logdir: str or None, of the run.
    show_logs: see `make`.
    no_wait: str, the flag for which the launcher only submits, or None.

  Raises:
    cli.UsageError: says which, and why.
  """
  asked = {
    '--live_table=on': _LIVE_TABLE.value == 'on',
    '--show_logs=all': show_logs == 'all',
  }
  for flag in (flag for flag, is_asked in asked.items() if is_asked):
    if launcher == 'kubernetes':
      raise cli.UsageError(
        f'{flag} is for launchers that see all tasks, and Kubernetes keeps'
        ' their logs: leave it out (--apply shows the chief), and see kubectl'
        ' logs'
      )
    if no_wait:
      raise cli.UsageError(
        f'{flag} is for a launcher that waits for the run, and with {no_wait}'
        ' it does not: leave one of them out'
      )
  if _LIVE_TABLE.value == 'on' and not logdir:
    raise cli.UsageError(
      '--live_table=on shows what the tasks write to a --logdir: give train one'
      ' on this file system, after the --'
    )


def _wants_table(wanted):
  """Whether a table is drawn; `wanted` is the value of --live_table."""
  if wanted == 'auto':
    return sys.stdout.isatty() and os.environ.get('TERM') != 'dumb'
  return wanted == 'on'
