"""Forwards the metrics of a run to a logger, live or afterwards.

  python -m distmnist.forward --logdir=logs/run --logger=wandb

It reads metrics.jsonl of each task from the first line on, and ends when
nothing of the run is left; `launch --loggers=wandb` runs it alongside a run.
"""

import signal
import threading

from absl import flags

from distmnist.common import cli, registry
from distmnist.common.names import LOGGERS
from distmnist.logdir import find_run
from distmnist.watching import forwarding, watched_run

_LOGGER = flags.DEFINE_enum(
  'logger', None, registry.names(LOGGERS), 'Where the metrics go. Required.'
)
_FIRST_FLAGS = ('logdir', 'logger')
_LOOK_SECS = 1.0


def main():
  """Forwards all lines until the run has ended, or SIGTERM or SIGINT comes.

  Raises:
    cli.UsageError: a flag is wrong.
    cli.RunError: the package of the logger is not installed.
  """
  if not _LOGGER.value:
    raise cli.UsageError('--logger is missing: say where the metrics go')
  logdir = find_run.folder_from_flags()
  module = registry.load(LOGGERS, _LOGGER.value)
  module.check()
  is_told = threading.Event()
  for number in (signal.SIGTERM, signal.SIGINT):
    signal.signal(number, lambda *_: is_told.set())
  run = watched_run.WatchedRun(logdir)
  forward(run, lambda: module.make(logdir, forwarding.find_flags(run)), is_told)


def forward(run, make_logger, is_told):
  """Gives a logger the numbers of a run until it ends.

  Args:
    run: watched_run.WatchedRun.
    make_logger: callable -> a logger, called at the first line.
    is_told: threading.Event, set to end once what is there is forwarded.
  """
  logger = None
  while True:
    is_last = is_told.is_set()
    lines = run.read_new()
    if lines and not logger:
      logger = make_logger()
    for task, time, step, numbers in forwarding.find_numbers(lines):
      logger.log(task, time, step, numbers)
    if is_last or (logger and not run.find_left()):
      break
    is_told.wait(_LOOK_SECS)
  if logger:
    logger.close(run.is_good)


def run():
  cli.run(main, first_flags=_FIRST_FLAGS)


if __name__ == '__main__':
  run()
