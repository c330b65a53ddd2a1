"""Describes a cluster as a list of tasks: what runs where, with which flags.

Pure: nothing here starts a process, opens a port or looks at the machine. A
launcher takes the list and runs it; `--dry_run` prints it.
"""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Sequence
from typing import Any

from distmnist.common import cli, command_line
from distmnist.common.names import MIN_WORKERS, TRAIN

# A task learns its role from these; only the launcher may set them.
CLUSTER_FLAGS = ('job_name', 'task_index', 'ps_hosts', 'worker_hosts')


@dataclasses.dataclass(frozen=True)
class Job:
  """The run that a launcher is asked for.

  A launcher is a module with its own flags and `launch(job) -> exit code`. It
  knows the hosts, makes the tasks with `make_tasks`, and prints what it would
  do if `dry_run`. Its `check_ready()`, if it has one, raises cli.RunError where
  this machine lacks the program that it needs.

  Attributes:
    num_ps, num_workers: the shape of the cluster.
    train_flags: for every task, untouched.
    given: the same with each --flagfile expanded.
    module: dotted name, what a task runs by `python -m`.
    logs_dir: the folder for one log per task, or None.
    max_restarts: how often each failed task restarts within a window.
    show_logs: whose lines go to the screen: 'chief' or 'all'.
    restart_window_secs: that window; 0 is the whole run.
    min_workers: how many workers are enough to go on, or None.
    evaluator: whether an evaluator follows the run.
    launch_flags: of launch itself: what --like takes over.
    num_cores: the cores of this machine that the workers share; None for all of
      them.
    record: run_record.RunRecord of the launch; None if there is none.
  """

  num_ps: int = 1
  num_workers: int = 2
  train_flags: tuple[str, ...] = ()
  given: tuple[str, ...] = ()
  module: str = TRAIN
  logs_dir: str | None = None
  max_restarts: int = 0
  dry_run: bool = False
  show_logs: str = 'chief'
  restart_window_secs: float = 0.0
  min_workers: int | None = None
  evaluator: bool = False
  launch_flags: tuple[str, ...] = ()
  num_cores: int | None = None
  record: Any = None

  def flag(self, name: str) -> str | None:
    """Returns the value that train's flag `name` was given, or None."""
    return command_line.find_value(self.given, name)


@dataclasses.dataclass(frozen=True)
class Task:
  """One process of the cluster, or one beside it.

  Attributes:
    job_name: 'ps', 'worker', 'evaluator', 'data' or 'check'.
    task_index: >= 0, counted within the job; None for 'data' and 'check'.
    host: the machine that runs it.
    port: where it serves; None for one that does not: the only task of a run
      without a cluster, 'evaluator', 'data' and 'check'.
    argv: the whole command: ('python', '-m', module, flags...).
    env: what it needs beyond its launcher's variables.
  """

  job_name: str
  task_index: int | None
  host: str
  port: int | None
  argv: tuple[str, ...]
  env: tuple[tuple[str, str], ...] = ()

  @property
  def name(self) -> str:
    if self.task_index is None:
      return self.job_name
    return f'{self.job_name} {self.task_index}'

  @property
  def is_member(self) -> bool:
    """Whether it is part of the cluster: the others need it."""
    return self.job_name in ('ps', 'worker')

  @property
  def address(self) -> str:
    return self.host if self.port is None else f'{self.host}:{self.port}'

  @property
  def module(self) -> str:
    return self.argv[2]

  def with_env(self, *more: tuple[str, str]) -> Task:
    """Returns the Task with more (name, value) in its `env`."""
    return dataclasses.replace(self, env=(*self.env, *more))

  @property
  def command(self) -> str:
    """The task as one line for a shell."""
    env = [f'{name}={shlex.quote(value)}' for name, value in self.env]
    return ' '.join([*env, shlex.join(self.argv)])


def make_tasks(
  ps_hosts: Sequence[str],
  worker_hosts: Sequence[str],
  train_flags: Sequence[str],
  num_cores: int | None = None,
  gpus: Sequence[str] | None = None,
  module: str = TRAIN,
) -> list[Task]:
  """Returns the tasks of a cluster: first the ps, then the workers.

  One worker without a ps is no cluster: it gets no cluster flags.

  Args:
    ps_hosts: list of 'host:port', may be empty.
    worker_hosts: list of 'host:port', at least one.
    train_flags: for every task. They come after those chosen here,
      and of two flags of the same name the later wins.
    num_cores: the cores that all workers share where they are on one machine;
      None leaves the number of threads to TensorFlow.
    gpus: the devices to give to worker 0, 1, ... in turn while every ps gets
      none; [] hides all devices; None leaves them as they are.
    module: dotted name, what `python -m` runs.

  Raises:
    cli.UsageError: `train_flags` sets what only the launcher may set.
  """
  check_train_flags(train_flags)
  hosts = []
  if len(ps_hosts) + len(worker_hosts) > 1:
    hosts = [
      f'--{job}_hosts={",".join(addresses)}'
      for job, addresses in (('ps', ps_hosts), ('worker', worker_hosts))
      if addresses
    ]
  # By default TensorFlow starts one thread per core in each task of a machine,
  # and tasks that compete for the cores are slower than one alone.
  worker_threads = max(1, (num_cores or 0) // len(worker_hosts))

  def make_task(
    job: str,
    index: int,
    address: str,
    threads: int,
    env: tuple[tuple[str, str], ...],
  ) -> Task:
    host, _, port = address.rpartition(':')
    role = [f'--job_name={job}', f'--task_index={index}'] if hosts else []
    chosen = make_thread_flags(threads) if num_cores else []
    argv = ('python', '-m', module, *role, *hosts, *chosen, *train_flags)
    return Task(job, index, host, int(port) if hosts else None, argv, env)

  return [
    make_task('ps', i, address, 1, _pin(gpus and []))
    for i, address in enumerate(ps_hosts)
  ] + [
    make_task('worker', i, address, worker_threads, _pin(gpus, i))
    for i, address in enumerate(worker_hosts)
  ]


def list_roles(
  num_ps: int, num_workers: int, has_evaluator: bool
) -> list[tuple[str, int]]:
  """Returns [(job name, task index), ...] of all tasks: first the ps."""
  counts = {'ps': num_ps, 'worker': num_workers, 'evaluator': has_evaluator}
  return [(job, i) for job, count in counts.items() for i in range(count)]


def make_thread_flags(num_threads: int) -> list[str]:
  """Returns the flags of a task that shares a machine's cores."""
  return [
    f'--intra_op_parallelism_threads={num_threads}',
    '--inter_op_parallelism_threads=2',
  ]


def tell_min_workers(
  cluster: list[Task], min_workers: int | None
) -> list[Task]:
  """Returns the tasks, told how many workers are enough.

  Args:
    min_workers: None leaves them as they are.
  """
  if min_workers is None:
    return cluster
  told = (MIN_WORKERS, str(min_workers))
  return [task.with_env(told) for task in cluster]


def make_evaluator_tasks(
  job: Job, host: str = '127.0.0.1', num_threads: int | None = None
) -> list[Task]:
  """Returns the task that evaluates checkpoints, [] if not wanted.

  It serves on no port: no task waits for it.

  Args:
    host: the machine that runs it.
    num_threads: TensorFlow's; None leaves their number to it.
  """
  if not job.evaluator:
    return []
  chosen = make_thread_flags(num_threads) if num_threads else []
  role = '--job_name=evaluator', '--task_index=0'
  argv = ('python', '-m', job.module, *role, *chosen, *job.train_flags)
  return [Task('evaluator', 0, host, None, argv, _pin([]))]


def describe_size(num_ps: int, num_workers: int, has_evaluator: int) -> str:
  """Returns how many tasks a run has."""
  plural = 's' if num_workers > 1 else ''
  more = ' with an evaluator' if has_evaluator else ''
  return f'{num_ps} ps and {num_workers} worker{plural}{more}'


def make_data_task(train_flags: Sequence[str], module: str = TRAIN) -> Task:
  """Returns the Task that makes sure the data set is there, then ends."""
  argv = ('python', '-m', module, *train_flags, '--download_only')
  return Task('data', None, '127.0.0.1', None, argv)


def make_check_task(worker: Task) -> Task:
  """Returns the Task that checks the flags of `worker`, then ends."""
  argv = (*worker.argv, '--nodownload_only', '--print_cluster')
  return Task('check', None, worker.host, None, argv, worker.env)


def check_train_flags(
  train_flags: Sequence[str], remedy: str | None = None
) -> None:
  """Refuses flags that would make a task believe it is another one.

  Args:
    remedy: what to do instead, if that is known.

  Raises:
    cli.UsageError: one of CLUSTER_FLAGS is among `train_flags`.
  """
  for name in CLUSTER_FLAGS:
    if command_line.find_value(train_flags, name) is not None:
      instead = remedy or (
        'leave it out, and give the shape of the cluster by --num_ps and '
        '--num_workers'
      )
      raise cli.UsageError(f"--{name} is the launcher's to set: {instead}")


def split_options(flag_name: str, text: str) -> list[str]:
  """Returns the words of a flag's value, as a shell splits it.

  Raises:
    cli.UsageError: a quotation mark is not closed.
  """
  try:
    return shlex.split(text)
  except ValueError as error:
    raise cli.UsageError(f'--{flag_name}={text}: {error}') from error


def _pin(
  gpus: Sequence[str] | None, worker_index: int = 0
) -> tuple[tuple[str, str], ...]:
  if gpus is None:
    return ()
  device = gpus[worker_index % len(gpus)] if gpus else ''
  return (('CUDA_VISIBLE_DEVICES', device),)
