"""Why a trial failed, according to its log."""

import contextlib
import re

from distmnist.common import cli
from distmnist.common.names import LAUNCH
from distmnist.launching.screen import task_logs
from distmnist.launching.supervisor import failures

_LAUNCH_ERROR = re.compile(rf'{LAUNCH}: error: .* failed .*?: (.*); log')
# All lines of the tail that is read: a line has at least one byte.
_NUM_LINES = 1 << 14


def find(log, start, code):
  """Returns why a run failed, as one line (str).

  This is the last error in its log, preferring a task's to the launcher's,
  which quotes the task's last lines; else the last line; else the exit code.

  Args:
    log: str, a path.
    start: int, where the log of this run begins, in bytes.
    code: int, the exit code, or -n after signal n.
  """
  ending = failures.describe_end(code)
  with contextlib.suppress(OSError):
    tail = task_logs.read_last_lines(log, start, _NUM_LINES)
    lines = [line.strip(' |') for line in tail]
    for line in reversed(lines):
      match = cli.ERROR_LINE.match(line)
      if match and match[1] != 'launch':
        return match[2]
      match = _LAUNCH_ERROR.match(line)
      if match and not re.match('exit code|killed by', match[1]):
        return match[1]
    if lines and code > 0:
      return f'{lines[-1]} ({ending})'
  return ending
