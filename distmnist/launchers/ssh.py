"""Runs the tasks on other hosts, over ssh.

Each host has the package, the data or a way to get it, and lets us in without a
password. The log of each task is kept here; --logdir is a folder that all
hosts share. launching/agent.py ends a task when we are gone.
"""

from __future__ import annotations

import logging
import os
import re
import shlex
import shutil
import sys

from absl import flags

from distmnist.cluster import addresses as addresses_lib
from distmnist.common import cli, stop_grace
from distmnist.common.names import AGENT, FIRST_PORT
from distmnist.launching import gpus, jobs, problem_file, run_tasks
from distmnist.launching.screen import task_logs
from distmnist.launching.ssh import ssh_host, ssh_hosts
from distmnist.launching.supervisor import restart_policy

_log = logging.getLogger(__name__)

_HOSTS = flags.DEFINE_string(
  'hosts',
  None,
  '[user@]host[:port], separated by commas. They get the tasks in turn: first'
  ' the ps, then the workers. Each host is a name or an address under which ssh'
  ' and all other hosts find it; its first task serves on the port, by default'
  f' {FIRST_PORT}, and its other tasks on those that follow.',
)
_SSH_OPTIONS = flags.DEFINE_string(
  'ssh_options',
  '',
  'Options of ssh, as in a shell: "-p 2200 -i key". ~/.ssh/config is the better'
  ' place.',
)
_SSH_DIR = flags.DEFINE_string(
  'ssh_dir', None, 'Folder on the hosts to run in. Default: the same as here.'
)
_SSH_PYTHON = flags.DEFINE_string(
  'ssh_python',
  None,
  'Python on the hosts; a relative path begins in --ssh_dir. Default: the same '
  'path as here.',
)
_SSH_GPUS = flags.DEFINE_integer(
  'ssh_gpus',
  None,
  'GPUs of each host to share out among its workers; a ps gets none. By default'
  ' each task sees all.',
  lower_bound=0,
)


def launch(job: jobs.Job) -> int:
  """Runs the jobs.Job; returns its exit code."""
  hosts = ssh_hosts.parse_hosts(_HOSTS.value or '')
  num_tasks = job.num_ps + job.num_workers
  places = ssh_hosts.deal(hosts, num_tasks + job.evaluator)
  addresses = [place.address for place in places[:num_tasks]]
  cluster = jobs.make_tasks(
    addresses[: job.num_ps],
    addresses[job.num_ps :],
    job.train_flags,
    module=job.module,
  )
  cluster = gpus.share_on_hosts(cluster, _SSH_GPUS.value)
  cluster = jobs.tell_min_workers(cluster, job.min_workers)
  cluster += jobs.make_evaluator_tasks(job, places[-1].host)
  folder = _SSH_DIR.value or os.getcwd()
  python = _SSH_PYTHON.value or sys.executable
  options = jobs.split_options('ssh_options', _SSH_OPTIONS.value)
  if job.dry_run:
    for place, task in zip(places, cluster, strict=True):
      env = [f'{name}={shlex.quote(value)}' for name, value in task.env]
      words = [*env, quote(python), shlex.join(task.argv[1:])]
      command = f'cd {quote(folder)} && {" ".join(words)}'
      print(shlex.join(['ssh', *options, place.login, command]))
    _log.info(
      f'these run only the tasks: a launch wraps each in {AGENT}, which '
      'ends it when the connection is lost'
    )
    return 0
  check_ready()
  logs_dir = task_logs.make_logs_dir(
    job.logs_dir, job.flag('logdir'), job.record
  )
  command = f'cd {quote(folder)} && exec {quote(python)} -m {AGENT}'
  grace_secs = stop_grace.parse(job.given)
  sent = problem_file.make_env(job.flag('problem'))
  num_hosts = len({place.host for place in places})
  if num_tasks > 1:
    _log.info(
      addresses_lib.describe_exposure(
        ssh_hosts.describe_ports(places[:num_tasks])
      )
    )
  host = ssh_host.SshHost(
    {
      task.name: (place.login, task.port)
      for place, task in zip(places, cluster, strict=True)
    },
    command,
    options,
    python,
    grace_secs,
  )
  return run_tasks.run(
    [task.with_env(*sent) for task in cluster],
    host,
    logs_dir,
    f'on {num_hosts} host{"s" if num_hosts > 1 else ""}',
    show_logs=job.show_logs,
    limits=restart_policy.from_job(job),
    stop_grace_secs=grace_secs,
    record=job.record,
  )


def check_ready() -> None:
  """Raises cli.RunError if this machine lacks ssh."""
  if not shutil.which('ssh'):
    raise cli.RunError(
      'no ssh on this machine: install the OpenSSH client (Debian, Ubuntu:'
      ' apt-get install openssh-client)'
    )


def quote(path: str) -> str:
  """Quotes a path for a shell, except for a ~ at its start."""
  home, slash, rest = path.partition('/')
  if home.startswith('~') and re.fullmatch(r'~[\w.-]*', home):
    return f'{home}{slash}{shlex.quote(rest) if rest else ""}'
  return shlex.quote(path)
