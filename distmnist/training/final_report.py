"""The last lines of a run, and its report.json."""

from __future__ import annotations

import logging
import shlex
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from absl import flags

from distmnist.common import cli, files, versions
from distmnist.common.names import SPLITS
from distmnist.logdir import (
  logdirs,
  report,
  report_text,
  run_flags,
  worker_records,
)
from distmnist.storage import urls

if TYPE_CHECKING:
  from distmnist.transport import strategy as strategy_lib

_log = logging.getLogger(__name__)

_REPORT_FILE = flags.DEFINE_string(
  'report_file',
  None,
  'A file into which the chief writes the report of the run, with or without '
  '--logdir.',
)


def check_flags() -> None:
  """Checks, before the training, that --report_file can be written after it.

  Raises:
    cli.UsageError: it cannot.
  """
  path = _find_file()
  if not path or urls.is_remote(path):
    return
  if reason := files.find_obstacle(path):
    raise cli.UsageError(f'--report_file={path} cannot be written: {reason}')


def _find_file() -> str | None:
  """Returns the path of --report_file, or None."""
  return _REPORT_FILE.value and urls.expand(_REPORT_FILE.value)


# Of a run that nothing but its own script has judged.
NOT_JUDGED = dict.fromkeys(
  (
    *('best_step', 'test_examples', 'judged_by'),
    *(
      f'{split}_{what}' for split in SPLITS for what in ('metrics', 'accuracy')
    ),
  )
)


def read_workers(logdir: str, life: str) -> list[report.WorkerStats]:
  """Returns the report.WorkerStats of the last life of each worker.

  For a chief that comes after the others have left; its own, a new `life`,
  comes first.
  """
  lives = sorted(worker_records.read(logdir), key=lambda stats: stats.start)
  last = {stats.worker: stats for stats in lives if stats.has_ended}
  own = last.pop(0, report.WorkerStats(0, life=life))
  return [own, *last.values()]


def publish(
  outcome: Mapping[str, Any],
  workers: Sequence[report.WorkerStats],
  strategy: strategy_lib.Strategy,
  num_workers: int,
  logdir: str | None,
  ends: str = '--train_steps or --epochs',
  more: str = 'more --train_steps, --epochs or --early_stopping_patience',
) -> None:
  """Logs how a run ended, and writes its report.

  Args:
    outcome: what only the chief knows; see logdir/report.py.
    workers: of the workers that were heard from.
    num_workers: the cluster's.
    ends: what says where the training ends.
    more: what of it continues a run.
  """
  all_lives, unknown = worker_records.gather(logdir, workers)
  outcome = {
    **outcome,
    'pushes_per_update': strategy.batches_per_update // strategy.push_period,
    'workers_not_heard_of': sorted(
      set(range(num_workers)) - {worker.worker for worker in workers}
    ),
    'earlier_lives_unknown': unknown,
  }
  settings = {
    'flags': {
      flag.name: flag.value
      for flag in run_flags.ours()
      if flag.value is not None
    },
    'flag_changes': run_flags.read_changes(logdir) if logdir else [],
    'versions': versions.find(),
  }
  whole = report.compose(settings, outcome, all_lives, strategy.max_staleness)
  for line in report_text.format_lines(whole):
    _log.info(line)
  if path := _find_file():
    report.write(whole, path)
  made_steps = any(worker.local_steps for worker in workers)
  if not any(life.local_steps for life in all_lives):
    _log.info(
      f'no step is made: the training begins at step {outcome["global_step"]}, '
      f'and {ends} ends it there or before; give more of them'
    )
  if not logdir:
    return
  if not made_steps and logdirs.has_ended(logdir):
    _log.info(
      f'already finished at step {outcome["global_step"]}: there was nothing '
      f'to do, and {logdirs.report_path(logdir)} stays as it was; continue '
      f'with {more}, or start over with --resume=never'
    )
  else:
    path = report.write(whole, logdirs.report_path(logdir))
    _log.info(f'{"report":<20}{path}')
    given = f'--logdir={shlex.quote(logdir)}'
    if not urls.is_remote(logdir):  # There are no metrics in a store.
      _log.info(f'{"page":<20}{cli.name_command("report")} {given}')
    _log.info(f'{"curves":<20}tensorboard {given}')
