"""Makes a run save and end, from any shell that sees its log directory.

  python -m distmnist.stop --logdir=logs/run

The run does what it does at Ctrl-C, whatever has started it: the same command
resumes it later. The request is a file in the log directory, which the launcher
looks for or, if no launcher waits, each task.
"""

from __future__ import annotations

import time
from typing import Any

from absl import flags

from distmnist.common import cli, files
from distmnist.logdir import find_run
from distmnist.storage import urls
from distmnist.watching import (
  metrics_file,
  run_state,
  stop_file,
  table_text,
  watched_run,
)

_TIMEOUT_SECS = flags.DEFINE_float(
  'timeout_secs',
  60.0,
  'Seconds to wait for the run to end once it is asked to; 0 asks and exits.',
  lower_bound=0,
)
_FIRST_FLAGS = ('logdir', 'timeout_secs')
_LOOK_SECS = 0.2


def main() -> None:
  """Asks the run to end, and waits for the end of all tasks.

  It asks before it looks, which may take a while. It does not wait for those
  that say nothing: they may be gone.
  """
  logdir = find_run.folder_from_flags()
  request, refusal = None, None
  if metrics_file.find(logdir):
    try:
      request = ask(logdir)
    except cli.RunError as error:
      refusal = error
  found = find_run.look(logdir)
  rows = found.state.make_rows()
  if found.find_left() or any(row.is_silent for row in rows):
    if refusal:
      raise refusal
    print(f'asked the run in {urls.tidy(logdir)} to save and end', flush=True)
    wait(found, _TIMEOUT_SECS.value)
  else:
    if request:
      stop_file.withdraw(logdir, request)
    check_seen(logdir, found.state)
  if _TIMEOUT_SECS.value:
    print(table_text.describe_run(logdir, found.state))


def check_seen(logdir: str, state: run_state.RunState) -> None:
  """Refuses a run that may be in a queue: an older request has no effect.

  Args:
    state: of a run that is not seen to run.

  Raises:
    cli.RunError: none of its tasks has been seen yet.
  """
  if {row.state for row in state.make_rows()} == {run_state.NOT_SEEN_YET}:
    where = (state.launcher or {}).get('launcher', 'see its launcher')
    raise cli.RunError(
      f'no task of the run in {urls.tidy(logdir)} has been seen yet: cancel it'
      f' where it waits ({where}), or ask again once it runs'
    )


def ask(logdir: str) -> dict[str, Any]:
  """Leaves the request in `logdir`; returns it.

  Raises:
    cli.RunError: it cannot be written there.
  """
  try:
    return stop_file.write(logdir)
  except OSError as error:
    why = files.describe_refusal(error, 'stop the run as its owner')
    raise cli.RunError(f'--logdir={logdir} cannot be written: {why}') from error


def wait(found: watched_run.WatchedRun, timeout_secs: float) -> None:
  """Waits until nothing of a run is left; not at all if `timeout_secs` is 0.

  Raises:
    cli.RunError: something is still left.
  """
  deadline = time.monotonic() + timeout_secs
  while timeout_secs and (left := found.find_left()):
    if time.monotonic() > deadline:
      raise cli.RunError(
        f'{", ".join(left)} still there {timeout_secs:g} s after the run in'
        f' {found.logdir} was asked to end: see {cli.name_command("logs")}'
        f' --logdir={found.logdir}, or end them where they run'
      )
    time.sleep(_LOOK_SECS)
    found.look()


def run() -> None:
  cli.run(main, first_flags=_FIRST_FLAGS)


if __name__ == '__main__':
  run()
