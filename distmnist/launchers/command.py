"""Runs each task as a job of any scheduler, by a command that the user gives.

  --launcher=command --template='qsub -N {name} -o {log} {script}'

Each task is one job; the jobs tell each other their hosts in a folder that this
machine shares with the nodes. Each job runs launching/scheduler/job_agent.py.
"""

from __future__ import annotations

import json
import logging
import os
import re
import secrets
import shlex
import shutil
import subprocess
import sys

from absl import flags

from distmnist.cluster import addresses
from distmnist.common import cli, stop_grace
from distmnist.common.names import LAUNCH_ID
from distmnist.launching import jobs, problem_file, run_tasks
from distmnist.launching.scheduler import job_host, job_meeting, job_template
from distmnist.launching.screen import task_logs
from distmnist.launching.supervisor import restart_policy

_log = logging.getLogger(__name__)

_TEMPLATE = flags.DEFINE_string(
  'template',
  None,
  "Shell command that submits one task: 'qsub -N {name} -o {log} {script}', "
  "'bsub -J {name} {command}'. {command} is the task as one word, {script} a "
  'file that contains it, {name} the name of the task, {log} a file for what '
  'the scheduler writes. Required.',
)
_PS_TEMPLATE = flags.DEFINE_string(
  'ps_template',
  None,
  'As --template, for the ps: without GPUs, or in another queue. Default:'
  ' --template.',
)
_PYTHON = flags.DEFINE_string(
  'template_python',
  None,
  'Python on the nodes. Default: the same path as here.',
)

_FILES_SECS = 3.0


def launch(job: jobs.Job) -> int:
  """Runs the jobs.Job; returns its exit code."""
  templates = _choose_templates()
  logdir = job.flag('logdir')
  if not job.logs_dir and not logdir:
    raise cli.UsageError(
      '--launcher=command needs a folder for the logs that the nodes share:'
      ' give --logs_dir, or --logdir to train'
    )
  python = _PYTHON.value or sys.executable
  names = jobs.list_roles(job.num_ps, job.num_workers, job.evaluator)
  if job.dry_run:
    for job_name, index in names:
      name = f'{job_name}_{index}'
      words = f'COMMAND-{name}', f'{name}.sh', name, f'{name}.scheduler'
      print(job_template.fill(templates[job_name], *words))
    return 0
  check_ready()
  logs_dir = os.path.abspath(
    task_logs.make_logs_dir(job.logs_dir, logdir, job.record)
  )
  grace_secs = stop_grace.parse(job.given)
  folder = os.path.join(logs_dir, f'jobs_{secrets.token_hex(4)}')
  _write_request(job, folder, grace_secs)
  argv = 'python', '-m', job.module, *job.train_flags
  tasks = [
    jobs.Task(job_name, index, 'its job', None, argv)
    for job_name, index in names
  ]
  # Beyond the time to save, messages go through files.
  grace_secs += _FILES_SECS
  host = job_host.JobHost(
    folder,
    {task.name: templates[task.job_name] for task in tasks},
    python,
    grace_secs,
  )
  if job.num_ps + job.num_workers > 1:
    _log.info(addresses.describe_exposure('the tasks'))
  try:
    return run_tasks.run(
      tasks,
      host,
      logs_dir,
      'as jobs',
      show_logs=job.show_logs,
      # A job that is submitted again may get another host.
      limits=restart_policy.Limits(job.max_restarts, restart_together=True),
      stop_grace_secs=grace_secs,
      record=job.record,
    )
  finally:
    # A job that starts from now on finds that the run is over.
    shutil.rmtree(folder, ignore_errors=True)


def check_ready() -> None:
  """Raises cli.RunError if this machine lacks the command of a template."""
  for flag, template in (
    ('template', _TEMPLATE.value),
    ('ps_template', _PS_TEMPLATE.value),
  ):
    if command := template and find_missing(template):
      raise cli.RunError(
        f'no {command} on this machine, which --{flag}={template} runs: start '
        'this where jobs are submitted, or give its path'
      )


def find_missing(template: str) -> str | None:
  """Returns the command that a template runs, if it is not here, or None.

  Only a plain first word is looked for; a shell may begin with more than that.
  """
  try:
    first = shlex.split(template)[0]
  except (ValueError, IndexError):
    return None
  if not re.fullmatch(r'[\w./+-]+', first):
    return None
  done = subprocess.run(
    ['sh', '-c', 'command -v -- "$1"', 'sh', first],
    stdin=subprocess.DEVNULL,
    capture_output=True,
  )
  return first if done.returncode else None


def _choose_templates() -> dict[str, str]:
  """Returns {job name: template}.

  Raises:
    cli.UsageError: one is missing or wrong.
  """
  if not _TEMPLATE.value:
    raise cli.UsageError(
      '--launcher=command needs --template: the command that submits a task,'
      " such as 'qsub -N {name} -o {log} {script}'"
    )
  job_template.check('template', _TEMPLATE.value)
  if _PS_TEMPLATE.value:
    job_template.check('ps_template', _PS_TEMPLATE.value)
  return {
    'ps': _PS_TEMPLATE.value or _TEMPLATE.value,
    'worker': _TEMPLATE.value,
    'evaluator': _TEMPLATE.value,
  }


def _write_request(job: jobs.Job, folder: str, grace_secs: float) -> None:
  os.makedirs(folder, mode=0o700)
  request: job_meeting.Request = {
    'cwd': os.getcwd(),
    'module': job.module,
    'num_ps': job.num_ps,
    'num_worker': job.num_workers,
    'train_flags': list(job.train_flags),
    'grace_secs': grace_secs,
    'env': {
      **dict(problem_file.make_env(job.flag('problem'))),
      LAUNCH_ID: os.environ.get(LAUNCH_ID, ''),
    },
  }
  path = os.path.join(folder, job_meeting.REQUEST)
  with open(path, 'w', encoding='utf-8') as file:
    json.dump(request, file)
