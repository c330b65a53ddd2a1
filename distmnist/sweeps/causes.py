"""Why a trial has failed, out of its log."""

import contextlib
import re

from distmnist.common import cli
from distmnist.common.names import LAUNCH
from distmnist.launching.screen import task_logs
from distmnist.launching.supervisor import failures

_LAUNCH_ERROR = re.compile(rf'{LAUNCH}: error: .* failed .*?: (.*); log')
# All of the tail that is read: a line has a byte at least.
_NUM_LINES = 1 << 14


def find(log, start, code):
  """Returns why a run has failed, one line (str).

  That is the last error in its log, of a task rather than of the launcher that
  shows the last lines of the task; else the last line; else the exit code.

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
