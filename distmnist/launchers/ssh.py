"""Runs the tasks on other hosts, over ssh.

Each host has the package, the data or a way to it, and lets us in without a
password. The log of each task is kept here; --logdir is a folder that all
hosts share. What ends a task when we are gone is in distmnist/remote.py.
"""

import dataclasses
import functools
import os
import re
import shlex
import shutil
import sys
import tempfile

from absl import flags

from distmnist import (
  cli,
  exposure,
  processes,
  remote,
  restarts,
  stop_grace,
  supervisor,
  task_logs,
)
from distmnist import tasks as tasks_lib

_HOSTS = flags.DEFINE_string(
  'hosts',
  None,
  '[user@]host[:port], separated by commas. They get the tasks in turn: first'
  ' the ps, then the workers. Each host is a name or an address under which ssh'
  ' and all other hosts find it; its first task serves on the port, by default'
  f' {tasks_lib.FIRST_PORT}, and its other tasks on those that follow.',
)
_SSH_OPTIONS = flags.DEFINE_string(
  'ssh_options',
  '',
  'Options of ssh, as in a shell: "-p 2200 -i key". ~/.ssh/config is the better'
  ' place.',
)
_SSH_DIR = flags.DEFINE_string(
  'ssh_dir', None, 'Folder on the hosts to run in. Default: the one here.'
)
_SSH_PYTHON = flags.DEFINE_string(
  'ssh_python',
  None,
  'Python on the hosts; a relative path begins in --ssh_dir. Default: the path'
  ' of the one here.',
)
_SSH_GPUS = flags.DEFINE_integer(
  'ssh_gpus',
  None,
  'GPUs of each host to share out among its workers; a ps gets none. By default'
  ' each task sees all.',
  lower_bound=0,
)

_HOST = re.compile(
  r'(?P<user>[\w.][\w.-]*@)?(?P<host>[\w.][\w.-]*|\[[\da-fA-F:.]+\])'
  r'(?::(?P<port>\d+))?',
  re.ASCII,
)


@dataclasses.dataclass(frozen=True)
class Place:
  """Where a task runs: ssh's [user@]host, and the address the others use."""

  login: str
  host: str
  port: int

  @property
  def address(self):
    return f'{self.host}:{self.port}'


def launch(job):
  """Runs the tasks.Job; returns its exit code (int)."""
  hosts = parse_hosts(_HOSTS.value or '')
  places = deal(hosts, job.num_ps + job.num_workers)
  addresses = [place.address for place in places]
  cluster = tasks_lib.make_tasks(
    addresses[: job.num_ps],
    addresses[job.num_ps :],
    job.train_flags,
    module=job.module,
  )
  cluster = share_gpus(cluster, _SSH_GPUS.value)
  cluster = tasks_lib.tell_min_workers(cluster, job.min_workers)
  folder = _SSH_DIR.value or os.getcwd()
  python = _SSH_PYTHON.value or sys.executable
  options = _split(_SSH_OPTIONS.value)
  if job.dry_run:
    for place, task in zip(places, cluster, strict=True):
      env = [f'{name}={shlex.quote(value)}' for name, value in task.env]
      words = [*env, quote(python), shlex.join(task.argv[1:])]
      command = f'cd {quote(folder)} && {" ".join(words)}'
      print(shlex.join(['ssh', *options, place.login, command]))
    processes.say(
      'these run the tasks alone: a launch has distmnist.remote around each,'
      ' which ends it when the connection is lost'
    )
    return 0
  if not shutil.which('ssh'):
    raise cli.RunError(
      'no ssh on this machine: install the OpenSSH client (Debian, Ubuntu:'
      ' apt-get install openssh-client)'
    )
  logs_dir = task_logs.make_logs_dir(job.logs_dir, job.flag('logdir'))
  command = f'cd {quote(folder)} && exec {quote(python)} -m distmnist.remote'
  grace_secs = stop_grace.parse(job.given)
  num_hosts = len({place.host for place in places})
  if len(cluster) > 1:
    processes.say(exposure.describe(describe_ports(places)))
  with tempfile.TemporaryDirectory(prefix='distmnist_ssh_') as turnstiles:
    return supervisor.run(
      [
        _make_local(
          *(task, place.login, command, options, grace_secs),
          os.path.join(turnstiles, place.host),
        )
        for place, task in zip(places, cluster, strict=True)
      ],
      logs_dir,
      f'on {num_hosts} host{"s" if num_hosts > 1 else ""}',
      show_logs=job.show_logs,
      explain=functools.partial(explain, python=python),
      limits=restarts.from_job(job),
      stop_grace_secs=grace_secs,
    )


def parse_hosts(text):
  """Returns the list of Place in `text`, the value of --hosts.

  Raises:
    cli.UsageError: none at all, or one that is no host.
  """
  places = []
  for entry in text.split(',') if text.strip() else ():
    entry = entry.strip()
    match = _HOST.fullmatch(entry)
    port = int(match['port'] or tasks_lib.FIRST_PORT) if match else 0
    if not 1 <= port <= 65535:
      raise cli.UsageError(
        f'--hosts: {entry!r} is no host: expected [user@]host[:port], with a'
        ' port from 1 to 65535'
      )
    login = (match['user'] or '') + match['host'].strip('[]')
    places.append(Place(login, match['host'], port))
  if not places:
    raise cli.UsageError(
      '--launcher=ssh needs --hosts: [user@]host[:port], separated by commas'
    )
  local = [p for p in places if is_loopback(p.host)]
  if 0 < len(local) < len(places):
    raise cli.UsageError(
      f'--hosts: {local[0].host} is another machine for each host: give the'
      ' name under which the others find it'
    )
  return places


def deal(hosts, num_tasks):
  """Returns a Place a task: host after host, in turn.

  A port that is taken on a host makes way for the next one.

  Args:
    hosts: list of Place, with the port to begin with.
    num_tasks: int.

  Raises:
    cli.UsageError: there is nothing to do for some host, or no port left.
  """
  if len(hosts) > num_tasks:
    raise cli.UsageError(
      f'--hosts names {len(hosts)} hosts for {num_tasks}'
      f' task{"s" if num_tasks > 1 else ""}: leave some out, or raise --num_ps'
      ' or --num_workers'
    )
  places, taken = [], set()
  for index in range(num_tasks):
    place = hosts[index % len(hosts)]
    # TensorFlow listens on all addresses of a machine: 127.0.0.1 and 127.0.0.2
    # share their ports.
    machine = '127.0.0.1' if is_loopback(place.host) else place.host
    while (machine, place.port) in taken:
      place = dataclasses.replace(place, port=place.port + 1)
    if place.port > 65535:
      raise cli.UsageError(f'--hosts: no port is left on {place.host}')
    taken.add((machine, place.port))
    places.append(place)
  return places


def is_loopback(host):
  """Whether `host`, a name or an address, is another machine for everybody."""
  return bool(re.fullmatch(r'localhost|127\..*', host))


def describe_ports(places):
  """Returns where the tasks serve (str): 'a (2222, 2223) and b (2222)'."""
  ports = {}
  for place in places:
    ports.setdefault(place.host, []).append(str(place.port))
  told = []
  for host, found in ports.items():
    if len(found) > 4:
      found = [f'{found[0]} to {found[-1]}']
    told.append(f'{host} ({", ".join(found)})')
  if len(told) > 4:
    told[3:] = [f'{len(told) - 3} more hosts']
  *most, last = told
  return f'{", ".join(most)} and {last}' if most else last


def share_gpus(cluster, num_gpus):
  """Returns the list of tasks.Task with the devices that each may see.

  Args:
    cluster: list of tasks.Task.
    num_gpus: int, the GPUs of each host, given to its workers in turn; None
      leaves all as it is.
  """
  if num_gpus is None:
    return cluster
  num_workers = {}
  shared = []
  for task in cluster:
    device = ''
    if num_gpus and task.job_name == 'worker':
      index = num_workers.get(task.host, 0)
      num_workers[task.host] = index + 1
      device = str(index % num_gpus)
    env = (*task.env, ('CUDA_VISIBLE_DEVICES', device))
    shared.append(dataclasses.replace(task, env=env))
  return shared


def quote(path):
  """Quotes a path for a shell; a ~ at its start stays one."""
  home, slash, rest = path.partition('/')
  if home.startswith('~') and re.fullmatch(r'~[\w.-]*', home):
    return f'{home}{slash}{shlex.quote(rest) if rest else ""}'
  return shlex.quote(path)


def explain(failure, last_lines, python):
  """The cause of a restarts.Failure (str), in ssh's own words if it was ssh.

  Args:
    failure: restarts.Failure.
    last_lines: list of str, the last ones of its log.
    python: str, the path of Python there.
  """
  if last_lines and last_lines[-1].startswith(remote.SSH_FAILED):
    words = last_lines[-1]
    if 'No module named' in words:
      words += f': the Python there was {python}: name another by --ssh_python'
    return words
  return failure.cause


def _make_local(task, login, command, options, grace_secs, turnstile):
  """Returns the Task of this machine that stands for `task` there."""
  request = {
    'argv': task.argv,
    'env': dict(task.env),
    'port': task.port,
    'grace_secs': stop_grace.for_remote(grace_secs),
  }
  command = remote.ssh_command(login, command, options)
  argv = remote.make_argv(login, request, command)
  env = ((remote.TURNSTILE, turnstile),)
  return dataclasses.replace(task, argv=argv, env=env)


def _split(text):
  try:
    return shlex.split(text)
  except ValueError as error:
    raise cli.UsageError(f'--ssh_options={text}: {error}') from error
