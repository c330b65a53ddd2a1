"""The work of an executor's Python process: it starts an agent, and waits."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from distmnist.cluster import task_environment
from distmnist.common import cli, command_line, ports
from distmnist.common.names import CHIEF, PACKAGE_DIR, SPARK_AGENT
from distmnist.launching import child_process, jobs

if TYPE_CHECKING:
  import pyspark

_SECRETS_OF_SPARK = 'PYTHON_WORKER_FACTORY'


def run_in_barrier(spec: dict[str, Any], records: Iterable[Any]) -> list[Any]:
  """Runs the task of this partition; called by Spark.

  Args:
    spec: JSON types only:
      num_ps, num_workers, train_flags, module: of the run.
      driver: [host, port]; secret: a text.
      attempt: how often the tasks were started, including this time.
      env: [[name, value]...], what a task needs beyond the executor's.
      main: None, or the user's function, see training/spark_function.py.
      feed: None, or layout and limit_mb, see spark/feed.py; flag, the name of
        the flag that says where the examples are.
    records: iterator over this partition; read only with `feed`.

  Returns:
    An empty list.

  Raises:
    RuntimeError: the agent has failed.
    ValueError: the examples cannot be used.
  """
  from pyspark import BarrierTaskContext

  with _make_folder() as folder:
    _run_in_folder(BarrierTaskContext.get(), spec, records, folder)
  return []


def _make_folder() -> tempfile.TemporaryDirectory[str]:
  """Returns a tempfile.TemporaryDirectory; the agent may remove it first."""
  return tempfile.TemporaryDirectory(
    prefix='distmnist_', dir=os.getcwd(), ignore_cleanup_errors=True
  )


def _run_in_folder(
  context: pyspark.BarrierTaskContext,
  spec: dict[str, Any],
  records: Iterable[Any],
  folder: str,
) -> None:
  num_ps, index, feed = spec['num_ps'], context.partitionId(), spec['feed']
  is_fed = feed and index >= num_ps
  num_examples = 0
  if is_fed:
    from distmnist.spark import feed as feed_lib

    num_examples = feed_lib.spool(
      records, folder, feed['layout'], feed['limit_mb']
    )
  # Held until the agent has ended, so that the task finds its port free.
  held = ports.hold_ports(1)[0]
  me = {
    'host': context.getTaskInfos()[index].address.rpartition(':')[0],
    'port': held.getsockname()[1],
    'examples': num_examples,
  }
  everyone = list(map(json.loads, context.allGather(json.dumps(me))))
  addresses = [f'{each["host"]}:{each["port"]}' for each in everyone]
  train_flags = list(spec['train_flags'])
  if is_fed:
    num_examples = min(each['examples'] for each in everyone[num_ps:])
    if not num_examples:
      raise ValueError(
        f'too few examples for {spec["num_workers"]} workers: one has none'
      )
    feed_lib.cut(folder, feed['layout'], num_examples)
    train_flags.append(f'--{feed["flag"]}={folder}')
  if spec['main']:
    path = os.path.join(folder, 'main')
    with open(path, 'w', encoding='ascii') as file:
      file.write(spec['main'])
    train_flags.append(f'--main={path}')
  task = jobs.make_tasks(
    addresses[:num_ps],
    addresses[num_ps:],
    train_flags,
    # A worker gets the cores that Spark gives a task, spark.task.cpus.
    num_cores=context.cpus() * spec['num_workers'],
    module=spec['module'],
  )[index]
  task = task.with_env(*map(tuple, spec['env']))
  if task.name == CHIEF and not command_line.find_value(train_flags, 'logdir'):
    # The report has to go somewhere.
    logdir = os.path.join(folder, 'logdir')
    task = dataclasses.replace(task, argv=(*task.argv, f'--logdir={logdir}'))
  with held:
    _run_agent(spec, task, task.name, folder, me['host'])


def run_trial(spec: dict[str, Any], _: Iterable[Any]) -> list[Any]:
  """Runs a trial of a sweep; called by Spark.

  Args:
    spec: JSON types only:
      name: what the driver calls this start of the trial.
      argv: the command; env: a dict, its environment beyond ours.
      lock: [path, word], a file that driver and executors share, into which
        the driver wrote this word; locked (shared) while the trial runs.
      driver, secret: as for `run_in_barrier`.

  Returns:
    An empty list.

  Raises:
    RuntimeError: the agent has failed.
  """
  host = socket.gethostname()
  env = tuple(spec['env'].items())
  task = jobs.Task('worker', 0, host, None, tuple(spec['argv']), env)
  with _make_folder() as folder:
    _run_agent(spec, task, spec['name'], folder, host)
  return []


def find_executor_pid() -> int | None:
  """Returns the pid of the JVM that this Python process works for, or None."""
  parent = os.getppid()
  with contextlib.suppress(OSError, ValueError, IndexError):
    with open(f'/proc/{parent}/cmdline', 'rb') as file:
      is_daemon = b'pyspark.daemon' in file.read()
    if not is_daemon:
      return parent
    with open(f'/proc/{parent}/stat', encoding='utf-8') as file:
      return int(file.read().rpartition(')')[2].split()[1])
  return None


def _run_agent(
  spec: dict[str, Any], task: jobs.Task, name: str, folder: str, host: str
) -> None:
  """Runs the agent to its end; its stdin closes when this process ends.

  Raises:
    RuntimeError: the agent has failed.
  """
  from pyspark import TaskContext

  if gpus := TaskContext.get().resources().get('gpu'):
    # Those of its slot: otherwise TensorFlow would take all the machine's.
    task = task.with_env(('CUDA_VISIBLE_DEVICES', ','.join(gpus.addresses)))
  for_agent = {
    'task': dataclasses.asdict(task),
    'name': name,
    'folder': folder,
    'executor': host,
    'executor_pid': find_executor_pid(),
    'lock': spec.get('lock'),
    'attempt': spec.get('attempt', 1),
    **{key: spec[key] for key in ('driver', 'secret')},
  }
  paths = [str(PACKAGE_DIR.parent), os.environ.get('PYTHONPATH')]
  env = {
    name: value
    for name, value in os.environ.items()
    if not name.startswith(_SECRETS_OF_SPARK)
  }
  # The flags say which task it is, not variables of the executor's host.
  task_environment.forget(env)
  env['PYTHONPATH'] = os.pathsep.join(path for path in paths if path)
  agent = subprocess.Popen(
    [sys.executable, '-m', SPARK_AGENT],
    env=env,
    stdin=subprocess.PIPE,
    stdout=subprocess.DEVNULL,
    start_new_session=True,
  )
  stdin = child_process.get_pipe(agent.stdin)
  with contextlib.suppress(BrokenPipeError):
    # Not in its argv or environment, where others may read the secret.
    stdin.write(json.dumps(for_agent).encode() + b'\n')
    stdin.flush()
  if code := agent.wait():
    why = f'ended with exit code {code}'
    if code == cli.LOST:
      why = 'cannot reach the driver at {}:{}'.format(*spec['driver'])
    raise RuntimeError(f'{name} ({task.address}): its agent {why}')
