"""What a launcher shows while its tasks run: their lines, and maybe a table."""

import os
import sys

from absl import flags

from distmnist.common import console
from distmnist.common.names import CHIEF
from distmnist.common.refusals import Refusal
from distmnist.launching.screen import log_view, table_screen, task_logs
from distmnist.storage import urls

FLAGS = flags.FLAGS

_LIVE_TABLE = flags.DEFINE_enum(
  'live_table',
  'auto',
  ['auto', 'on', 'off'],
  'Draw a table of all tasks below the lines of the run, twice a second. auto:'
  ' where stdout is a terminal and the run has a --logdir.',
)


def make(logs_dir, tasks, show_logs, record=None):
  """Returns the Screen of `tasks`, on which our own lines are shown as well.

  Args:
    logs_dir: str, the folder of their logs.
    tasks: list of jobs.Task.
    show_logs: 'chief' for its lines as they are, 'all' for the lines of every
      task, each after the task's name.
    record: run_record.RunRecord, with the log directory of the launch, or None.
  """
  logs = {
    '' if show_logs == 'chief' else f'[{task.name}] ': task_logs.log_path(
      logs_dir, task
    )
    for task in tasks
    if show_logs == 'all' or task.name == CHIEF
  }
  logdir = record and record.logdir
  # What a store has of a run is some seconds old, and each look costs money.
  is_here = logdir and not urls.is_remote(logdir)
  if is_here and _wants_table(_LIVE_TABLE.value):
    screen = table_screen.TableScreen(logs, logdir)
  else:
    screen = log_view.Screen(logs)
  console.print_logs(screen.print_line)
  return screen


def _make_refusals(flag, value):
  """Returns the rows of a flag that shows, at `value`, more than the chief."""
  return (
    Refusal(
      flag,
      lambda f: FLAGS[flag].value == value and f.launcher == 'kubernetes',
      ' is for launchers that see all tasks, and Kubernetes keeps their logs: '
      'leave it out (--apply shows the chief), and see kubectl logs',
    ),
    Refusal(
      flag,
      lambda f: FLAGS[flag].value == value and f.no_wait,
      lambda f: (
        f' is for a launcher that waits for the run, and with {f.no_wait} it '
        'does not: leave one of them out'
      ),
    ),
  )


# Facts: launcher, str; logdir, str or None, train's flag; no_wait, str or None,
# the flag for which the launcher only submits.
REFUSALS = (
  *_make_refusals('live_table', 'on'),
  *_make_refusals('show_logs', 'all'),
  Refusal(
    'live_table',
    lambda f: (
      FLAGS.live_table == 'on' and (not f.logdir or urls.is_remote(f.logdir))
    ),
    ' shows what the tasks write to a --logdir: give train one on this file '
    'system, after the --',
  ),
)


def _wants_table(wanted):
  """Whether a table is drawn; `wanted` is the value of --live_table."""
  if wanted == 'auto':
    return sys.stdout.isatty() and os.environ.get('TERM') != 'dumb'
  return wanted == 'on'
