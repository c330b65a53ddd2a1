"""Runs the tasks of a Slurm job; what the job's script becomes.

It runs on the first node, says on stdout what the launcher shows of slurm.log
(see distmnist.launchers.slurm), and ends with the exit code of the run.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import os
import re
import signal
import sys
import traceback
from collections.abc import Mapping, Sequence

from distmnist.cluster.identity import NUM_EVALUATORS, NUM_PS
from distmnist.common import cli, console
from distmnist.common.names import LAUNCH_ID, SLURM_JOB
from distmnist.launching import jobs, run_tasks
from distmnist.launching.screen import task_logs, terminal
from distmnist.launching.slurm import srun_host
from distmnist.launching.supervisor import (
  endings,
  restart_policy,
  task_group,
  task_record,
)

_log = logging.getLogger(SLURM_JOB)  # It runs as __main__.

# Why Slurm has cancelled the job, in its own words; it has none for scancel.
_WHY = re.compile(r'\*\*\* JOB .* DUE TO ([A-Z ]+)(?:,[^*]*)? \*\*\*')


@dataclasses.dataclass(frozen=True)
class Request:
  """The request of the launcher, in the first word of the command line.

  Attributes:
    logs_dir: an absolute path.
    max_restarts: of all tasks together.
    stop_grace_secs: see TaskGroup.
    share_gpus: whether each worker gets one GPU of its node, a ps none.
  """

  logs_dir: str
  num_ps: int
  num_workers: int
  evaluator: bool
  max_restarts: int
  stop_grace_secs: float
  share_gpus: bool


def main(argv: Sequence[str]) -> int:
  """Runs the tasks; returns the exit code.

  Args:
    argv: a Request in JSON and what follows `python` for a task.
  """
  request = Request(**json.loads(argv[0]))
  return _Job(request, argv[1:], os.environ).run()


class _Job:
  """The job, from the start of its script to its exit code."""

  def __init__(
    self, request: Request, words: Sequence[str], environ: Mapping[str, str]
  ) -> None:
    self._request = request
    self._logs_dir = request.logs_dir
    self._environ = environ
    self._id = environ['SLURM_JOB_ID']
    self._tasks = make_tasks(request, words)
    self._log_path = os.path.join(self._logs_dir, 'slurm.log')
    # Earlier jobs, and this one before it was queued again, wrote there too.
    self._log_start = _find_size(self._log_path)

  def run(self) -> int:
    console.print_logs(self._say)
    nodes = [
      self._environ[name]
      for name in ('SLURM_JOB_NODELIST', 'SLURM_JOB_NODELIST_HET_GROUP_1')
      if name in self._environ
    ]
    _log.info(f'runs on {" and ".join(nodes)}')
    code, may_come_again = cli.OUR_MISTAKE, False
    try:
      code, may_come_again = self._run_tasks()
    except (cli.RunError, OSError) as error:
      _log.info(f'error: {error}; log: {self._log_path}')
      code = getattr(error, 'exit_code', cli.FAILED)
    except Exception:
      traceback.print_exc()
    if not may_come_again:
      self._say_ended(code)
    return code

  def _say(self, line: str) -> None:
    with terminal.may_close():
      print(f'job {self._id}: {line}', flush=True)

  def _say_ended(self, code: int) -> None:
    """Tells the launcher, which hears of it from Slurm some seconds later."""
    path = os.path.join(self._logs_dir, f'job_{self._id}.ended')
    with (
      contextlib.suppress(OSError),
      open(path, 'w', encoding='ascii') as file,
    ):
      file.write(f'{self._id} {code}\n')

  def _run_tasks(self) -> tuple[int, bool]:
    """Returns the exit code, and whether Slurm may start it again."""
    request = self._request
    # Slurm starts a job again whose node has failed, or was needed by others.
    num_requeued = int(self._environ.get('SLURM_RESTART_COUNT') or 0)
    self._begin_logs(num_requeued)
    host = srun_host.SrunHost(
      self._logs_dir,
      len(self._tasks),
      {
        **self._environ,
        NUM_PS: str(request.num_ps),
        NUM_EVALUATORS: str(int(request.evaluator)),
        LAUNCH_ID: self._id,
        'PYTHONUNBUFFERED': '1',
      },
      request.stop_grace_secs,
      request.share_gpus,
      num_requeued,
    )
    limits = restart_policy.Limits(request.max_restarts, restart_together=True)
    group = task_group.TaskGroup(
      host,
      self._logs_dir,
      limits,
      on_start=lambda name, *_: _note_node(group.records[name], host),
      stop_grace_secs=request.stop_grace_secs,
    )
    with group:
      left = run_tasks.run_to_end(group, self._tasks, limits)
      is_cancelled = bool(left and group.signals)
      if left:
        group.stop()
    if failure := group.failure:
      return endings.report_failure(failure, group, self._logs_dir), False
    if is_cancelled:
      return self._report_cancelled(group)
    late = [group.records[task.name].task for task in left]
    run_tasks.say_late(late, limits, self._logs_dir)
    return 0, False

  def _begin_logs(self, num_requeued: int) -> None:
    """Marks in each log where this job's lines begin, if it is not new."""
    for task in self._tasks:
      path = task_logs.log_path(self._logs_dir, task)
      note = 'requeued by Slurm' if num_requeued else f'job {self._id}'
      if num_requeued or _find_size(path):
        task_logs.begin_attempt(path, note)

  def _report_cancelled(self, group: task_group.TaskGroup) -> tuple[int, bool]:
    why = self._find_why()
    due = f' due to {why.lower()}' if why else ''
    _log.info(f'cancelled{due}: the tasks were told to leave')
    code = endings.report_saved(group, signal.SIGTERM)
    # After anything else Slurm may start the job once more.
    return code, why not in ('', 'TIME LIMIT')

  def _find_why(self) -> str:
    """Returns why Slurm has cancelled the job, such as 'TIME LIMIT', or ''."""
    try:
      with open(self._log_path, 'rb') as log:
        log.seek(self._log_start)
        found = _WHY.findall(log.read().decode(errors='replace'))
    except OSError:
      return ''
    return found[-1] if found else ''


def make_tasks(request: Request, words: Sequence[str]) -> list[jobs.Task]:
  """Returns the tasks, in the order of their numbers in the step.

  Slurm says where each runs, and its variables which one it is.

  Args:
    words: what follows `python` for each task.
  """
  names = jobs.list_roles(
    request.num_ps, request.num_workers, request.evaluator
  )
  hidden = (('CUDA_VISIBLE_DEVICES', ''),)
  return [
    jobs.Task(
      job_name,
      index,
      'its node',
      None,
      ('python', *words),
      hidden if request.share_gpus and job_name != 'worker' else (),
    )
    for job_name, index in names
  ]


def _note_node(
  record: task_record.TaskRecord, host: srun_host.SrunHost
) -> None:
  """Has messages about a task name the node where it runs."""
  node = host.nodes[record.task.name]
  record.task = dataclasses.replace(record.task, host=node)


def _find_size(path: str) -> int:
  """Returns the size of a file in bytes, 0 if there is none."""
  try:
    return os.path.getsize(path)
  except OSError:
    return 0


if __name__ == '__main__':
  sys.exit(main(sys.argv[1:]))
