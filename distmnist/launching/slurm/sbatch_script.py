"""The script of a Slurm job: the options of sbatch, and what it becomes."""

from __future__ import annotations

import dataclasses
import json
import re
import shlex
import signal
from collections.abc import Sequence

from distmnist.common import cli, signals, stop_grace
from distmnist.common.names import SLURM_JOB
from distmnist.launching import jobs, problem_file
from distmnist.launching.slurm import run_job

# The time from Slurm's SIGTERM to its SIGKILL unless it is configured, and how
# long before the SIGKILL the tasks must have left.
KILL_WAIT_SECS = 30
_KILL_MARGIN_SECS = 3
_STOPS = [signal.Signals(n).name.removeprefix('SIG') for n in signals.STOPS]


def make(
  job: jobs.Job,
  logs_dir: str,
  python: str,
  components: Sequence[Sequence[str]] = ((),),
  setup: str | None = None,
  kill_wait_secs: int = KILL_WAIT_SECS,
  may_requeue: bool = False,
) -> str:
  """Returns the script for sbatch.

  Args:
    logs_dir: an absolute path.
    python: the path of Python on the nodes.
    components: more options of sbatch: one list for all tasks, or one for the
      ps and one for the workers of a heterogeneous job.
    setup: shell commands that run first, or None.
    kill_wait_secs: from Slurm's SIGTERM to its SIGKILL.
    may_requeue: whether Slurm may start the job again after a node has failed
      or was needed by a job of higher priority.

  Raises:
    cli.UsageError: an option of sbatch, or `logs_dir`, has a line break.
  """
  grace_secs, chosen = stop_grace.choose(job, kill_wait_secs, _KILL_MARGIN_SECS)
  counts = [job.num_ps, job.num_workers + job.evaluator]
  request = run_job.Request(
    logs_dir=logs_dir,
    num_ps=job.num_ps,
    num_workers=job.num_workers,
    evaluator=job.evaluator,
    max_restarts=job.max_restarts,
    # Of what else they run this is not known: they have what Slurm allows.
    stop_grace_secs=max(grace_secs, kill_wait_secs - _KILL_MARGIN_SECS),
    # A worker that asks for several gets all GPUs of its node.
    share_gpus=job.flag('num_gpus') in (None, '1'),
  )
  size = jobs.describe_size(job.num_ps, job.num_workers, job.evaluator)
  told = json.dumps(dataclasses.asdict(request))
  task = ['-m', job.module, *chosen, *job.train_flags]
  lines = [
    '#!/bin/bash',
    f'# Written by distmnist.launch: {size}.',
    make_options(logs_dir, counts, components, may_requeue),
    *(
      f'export {name}={shlex.quote(value)}'
      for name, value in problem_file.make_env(job.flag('problem'))
    ),
    *([setup] if setup else []),
    f'exec {shlex.join([python, "-m", SLURM_JOB, told])} \\',
    f'  {shlex.join(task)}',
  ]
  return '\n'.join([*lines, ''])


def make_options(
  logs_dir: str,
  counts: Sequence[int],
  components: Sequence[Sequence[str]],
  may_requeue: bool,
) -> str:
  """Returns the lines for the parts of a job.

  Args:
    logs_dir: an absolute path; slurm.log there is the job's own log.
    counts: the ps and all other tasks.
    components: more options: one list for all tasks, or one for the ps and one
      for the others of a heterogeneous job.
    may_requeue: whether Slurm may start the job again.

  Raises:
    cli.UsageError: an option would take more than one line, or has Slurm send
      a signal that ends the tasks unsaved.
  """
  for option in {option for options in components for option in options}:
    _check_signal(option)
  common = [
    '--job-name=distmnist',
    f'--output={_as_pattern(logs_dir)}/slurm.log',
    '--open-mode=append',
    '--requeue' if may_requeue else '--no-requeue',
  ]
  if len(components) == 1:
    counts = [sum(counts)]
  parts = [
    [*common, f'--ntasks={count}', *options]
    for count, options in zip(counts, components, strict=True)
  ]
  return '\n#SBATCH hetjob\n'.join(
    '\n'.join(f'#SBATCH {_quote(option)}' for option in part) for part in parts
  )


def _check_signal(option: str) -> None:
  """Checks an option of the kind --signal=[{R|B}:]NAME_OR_NUMBER[@SECS]."""
  match = re.fullmatch(r'--signal=(?:([RB]+):)?(\w+)(?:@\d+)?', option)
  if not match:
    return
  to_whom, signum = match[1] or '', match[2].upper().removeprefix('SIG')
  numbers = {str(int(n)) for n in signals.STOPS}
  if 'B' in to_whom or signum not in {*_STOPS, *numbers}:
    raise cli.UsageError(
      f'--slurm_options={option}: the tasks save when they themselves get one '
      f'of {", ".join(_STOPS)}: expected such as --signal=TERM@60, without B:, '
      'which signals the script of the job alone'
    )


def _as_pattern(path: str) -> str:
  """Returns Slurm's pattern of a file name for exactly this path."""
  # A backslash anywhere turns the meaning of % off.
  if '\\' in path:
    return path.replace('\\', '\\\\')
  return path.replace('%', '%%')


def _quote(option: str) -> str:
  if '\n' in option:
    raise cli.UsageError(
      f'{option!r} cannot be given to sbatch, which reads one option a line:'
      ' leave the line break out'
    )
  # Unlike a shell, sbatch takes a backslash for an escape within '' too.
  return shlex.quote(option).replace('\\', '\\\\')
