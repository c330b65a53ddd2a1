"""Runs the tasks as one Slurm job.

The launcher writes a script for sbatch into the folder of the logs, submits it
and waits for the job. One srun starts all tasks; each finds its role in the
variables that the script and Slurm set. The folder of the logs and --logdir are
on a file system that the nodes share.
"""

from __future__ import annotations

import logging
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable

from absl import flags

from distmnist.cluster import addresses
from distmnist.common import cli, files, stop_grace
from distmnist.launching import jobs
from distmnist.launching.screen import log_view, screens, task_logs, terminal
from distmnist.launching.slurm import sbatch, sbatch_script
from distmnist.storage import urls

_log = logging.getLogger(__name__)

_PARTITION = flags.DEFINE_string(
  'slurm_partition', None, 'Partition (queue) to submit to.'
)
_TIME = flags.DEFINE_string(
  'slurm_time',
  None,
  'Time limit of the job, as Slurm writes it: 30, 2:00:00, 1-0.',
)
_NODES = flags.DEFINE_integer(
  'slurm_nodes', None, 'Nodes to spread the tasks over.', lower_bound=1
)
_OPTIONS = flags.DEFINE_string(
  'slurm_options',
  '',
  'More options of sbatch, as in a shell: "--cpus-per-task=4 --gres=gpu:2".',
)
_PS_OPTIONS = flags.DEFINE_string(
  'slurm_ps_options',
  None,
  'Options of sbatch for the ps alone: "--cpus-per-task=2 --partition=cpu". The'
  ' job is then a heterogeneous one: --slurm_options and --slurm_nodes are for'
  ' the workers, and the ps are on other nodes. Default: all tasks share one'
  ' allocation.',
)
_REQUEUE = flags.DEFINE_bool(
  'slurm_requeue',
  None,
  'Let Slurm requeue the job after a job of higher priority has taken its '
  'nodes or a node has failed; it goes on from its last checkpoint. Default: '
  'with --max_restarts.',
)
_SETUP = flags.DEFINE_string(
  'slurm_setup',
  None,
  'Shell commands to run before the tasks start, such as "module load cuda".',
)
_PYTHON = flags.DEFINE_string(
  'slurm_python',
  None,
  'Python on the nodes. Default: the same path as here.',
)
_WAIT = flags.DEFINE_bool(
  'slurm_wait',
  True,
  'Show the job and wait for its end; a signal cancels it. Otherwise it is '
  'submitted and left to Slurm.',
)

_CONFIG_SECS = 5.0


def launch(job: jobs.Job) -> int:
  """Runs the jobs.Job; returns its exit code."""
  logdir = job.flag('logdir')
  logs_dir = job.logs_dir
  if not logs_dir and logdir and not urls.is_remote(logdir):
    logs_dir = os.path.join(logdir, 'logs')
  if not logs_dir:
    raise cli.UsageError(
      '--launcher=slurm needs a folder for the logs that the nodes share: give '
      '--logs_dir, or give train a --logdir that is not an address of a store'
    )
  logs_dir = os.path.abspath(os.path.expanduser(logs_dir))
  kill_wait_secs = read_kill_wait()
  script = sbatch_script.make(
    job,
    logs_dir,
    _PYTHON.value or sys.executable,
    _make_components(job),
    _SETUP.value,
    kill_wait_secs,
    bool(job.max_restarts) if _REQUEUE.value is None else _REQUEUE.value,
  )
  if job.dry_run:
    print(script, end='')
    return 0
  check_ready()
  # A store may be out of reach of this machine.
  shared = None if logdir and urls.is_remote(logdir) else logdir
  task_logs.make_logs_dir(logs_dir, shared, job.record)
  grace_secs = stop_grace.parse(job.given)
  if grace_secs >= kill_wait_secs:
    _log.info(
      f'--stop_grace_secs={grace_secs:g}, but Slurm kills {kill_wait_secs} s '
      'after it has signalled the tasks (its KillWait): what takes longer to '
      'save is lost'
    )
  path = pathlib.Path(logs_dir) / 'job.sbatch'
  with files.replacing(str(path)) as file:
    file.write(script)
  return run(job, path, logs_dir, _WAIT.value)


def check_ready() -> None:
  """Raises cli.RunError if this machine lacks sbatch."""
  if not shutil.which('sbatch'):
    raise cli.RunError(
      'no sbatch on this machine: start this on a login node of the cluster, or'
      ' install the Slurm client (Debian, Ubuntu: apt-get install slurm-client)'
    )


def read_kill_wait() -> int:
  """Returns Slurm's KillWait in seconds; its default, 30, if unknown."""
  try:
    done = subprocess.run(
      ['scontrol', 'show', 'config'],
      stdin=subprocess.DEVNULL,
      capture_output=True,
      text=True,
      timeout=_CONFIG_SECS,
    )
  except (OSError, subprocess.TimeoutExpired):
    return sbatch_script.KILL_WAIT_SECS
  found = re.search(r'^KillWait\s*=\s*(\d+)', done.stdout, re.MULTILINE)
  return int(found[1]) if found else sbatch_script.KILL_WAIT_SECS


def _make_components(job: jobs.Job) -> list[list[str]]:
  """Returns the options of sbatch that the flags ask for, lists of str."""
  named = {'partition': _PARTITION.value, 'time': _TIME.value}
  common = [f'--{n}={v}' for n, v in named.items() if v is not None]
  nodes = [f'--nodes={_NODES.value}'] if _NODES.value else []
  workers = [
    *common,
    *nodes,
    *jobs.split_options('slurm_options', _OPTIONS.value),
  ]
  if _PS_OPTIONS.value is None:
    return [workers]
  if not job.num_ps:
    raise cli.UsageError(
      f'--slurm_ps_options={_PS_OPTIONS.value}, but --num_ps=0: leave it out'
    )
  return [
    [*common, *jobs.split_options('slurm_ps_options', _PS_OPTIONS.value)],
    workers,
  ]


def run(
  job: jobs.Job, script: pathlib.Path, logs_dir: str, is_waited_for: bool = True
) -> int:
  """Submits a script and shows the job until it ends; returns its exit code.

  Args:
    logs_dir: where the job writes its logs.
    is_waited_for: if False, returns 0 once the job is submitted.

  Raises:
    cli.RunError: sbatch rejects it.
  """
  names = ['ps:1'] * job.num_ps, ['worker:1'] * job.num_workers
  tasks = jobs.make_tasks(*names, []) + jobs.make_evaluator_tasks(job)
  shown = screens.make(logs_dir, tasks, job.show_logs, job.record)
  log = log_view.Log(os.path.join(logs_dir, 'slurm.log'))
  said = []

  def update(
    read: Callable[[log_view.Log], list[str]] = log_view.Log.read_lines,
  ) -> None:
    shown.update()
    for line in read(log):
      # The script describes better what Slurm says about a step.
      if line.startswith('srun: ') or ' *** STEP ' in line:
        continue
      with terminal.may_close():
        shown.close_line()
        print(f'[slurm] {line}', file=sys.stderr, flush=True)
      said.append(line)

  with sbatch.Submission(script, is_waited_for) as submission:
    job_id = submission.read_job_id()
    ended = pathlib.Path(logs_dir) / f'job_{job_id}.ended'
    ended.unlink(missing_ok=True)  # Of a job that had the number long ago.
    size = jobs.describe_size(job.num_ps, job.num_workers, job.evaluator)
    _log.info(f'{size} as job {job_id} of Slurm, logs in {logs_dir}')
    if job.record:
      job.record.begin(tasks, logs_dir, job_id)
    if job.num_ps + job.num_workers > 1:
      _log.info(addresses.describe_exposure(f'the tasks of job {job_id}'))
    if not is_waited_for:
      if job.record:
        job.record.leave()
      return 0
    code = submission.wait(job_id, ended, update)
    ended.unlink(missing_ok=True)
  update(log_view.Log.finish)
  shown.finish()
  if submission.signals:
    signum = submission.signals[0]
    name = signal.Signals(signum).name
    _log.info(f'stopped by {name}, logs in {logs_dir}')
    return code if code == cli.NOT_SAVED else 128 + signum
  if code and not any(f'job {job_id}: error: ' in line for line in said):
    ending = sbatch.find_ending(job_id, code, said)
    _log.info(f'error: job {job_id} {ending}; log: {logs_dir}/slurm.log')
  return code
