"""Forwards the metrics of a run to a logger, live or afterwards.

  python -m distmnist.forward --logdir=logs/run --logger=wandb

It reads metrics.jsonl of each task from the first line on, and ends when
nothing of the run is left; `launch --loggers=wandb` runs it alongside a run.
"""

import logging
import signal
import threading

from absl import flags

from distmnist.common import cli, console, registry
from distmnist.common.names import CHIEF, FORWARD, LOGGERS
from distmnist.logdir import find_run
from distmnist.watching import forwarding, watched_run

_log = logging.getLogger(FORWARD)  # It may run as __main__.

_LOGGER = flags.DEFINE_enum(
  'logger', None, registry.names(LOGGERS), 'Where the metrics go. Required.'
)
_FIRST_FLAGS = ('logdir', 'logger')
_LOOK_SECS = 1.0


def main():
  """Forwards all lines until the run has ended, or SIGTERM or SIGINT comes.

  A second SIGINT ends this process at once.

  Raises:
    cli.UsageError: a flag is wrong.
    cli.RunError: there is no run, or the package of the logger is missing.
  """
  if not _LOGGER.value:
    raise cli.UsageError('--logger is missing: say where the metrics go')
  # A launcher has written its first line before it starts this program.
  logdir = find_run.from_flags().logdir
  module = registry.load(LOGGERS, _LOGGER.value)
  module.check()
  is_told = threading.Event()
  end_when_told(is_told)
  run = watched_run.WatchedRun(logdir, has_all=True)
  console.print_logs(console.print_to_stderr)
  # Its server may take minutes to answer.
  _log.info(
    f'forwarding {logdir} to {_LOGGER.value}; Ctrl-C ends it once what is there'
    ' is delivered, a second one at once'
  )
  forward(run, lambda: module.make(logdir, forwarding.find_flags(run)), is_told)


def end_when_told(is_told):
  """Has SIGTERM and SIGINT set `is_told`, a threading.Event."""

  def handle(signum, _):
    is_told.set()
    # The server of the logger may not answer: a second Ctrl-C waits no longer.
    # A second SIGTERM may be the launcher's, of the same stop.
    if signum == signal.SIGINT:
      signal.signal(signum, signal.SIG_DFL)

  for number in (signal.SIGTERM, signal.SIGINT):
    signal.signal(number, handle)


def forward(run, make_logger, is_told):
  """Gives a logger the numbers of a run until it ends.

  Args:
    run: watched_run.WatchedRun.
    make_logger: callable -> a logger, called at the first line.
    is_told: threading.Event, set to end once what is there is forwarded.
  """
  logger, has_begun = None, False
  while True:
    is_last = is_told.is_set()
    lines = run.read_new()
    if lines and not logger:
      logger = make_logger()
    if not has_begun and _has_begun(run.state):
      # The chief has moved an earlier run aside, if it is to begin anew.
      has_begun, run = True, watched_run.WatchedRun(run.logdir, True)
      lines = run.read_new()
    for task, time, step, numbers in forwarding.find_numbers(
      lines if has_begun else []
    ):
      logger.log(task, time, step, numbers)
    if is_last or (logger and not run.find_left()):
      break
    is_told.wait(_LOOK_SECS)
  if logger:
    logger.close(run.is_good)


def _has_begun(state):
  """Whether the lines of `state`, a run_state.RunState, are all of one run."""
  if state.has_no_launcher or not state.launcher:
    return True
  chief = state.tasks.get(CHIEF)
  # By its name: the clock of its host may be ahead of the launcher's.
  launch = state.launcher.get('launch') or ''
  return bool(
    chief and chief.start and (chief.start.get('launch') or '') == launch
  )


def run():
  cli.run(main, first_flags=_FIRST_FLAGS)


if __name__ == '__main__':
  run()
