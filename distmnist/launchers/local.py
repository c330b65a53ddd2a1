"""Runs all tasks on this machine."""

from __future__ import annotations

import logging
import os

from absl import flags

from distmnist.cluster import addresses
from distmnist.common import cli, registry, stop_grace
from distmnist.common import ports as ports_lib
from distmnist.common.names import FIRST_PORT, PROBLEMS, TRAIN
from distmnist.launching import gpus as gpus_lib
from distmnist.launching import jobs, network_namespace, run_tasks
from distmnist.launching.forking import fork_client
from distmnist.launching.screen import task_logs
from distmnist.launching.supervisor import restart_policy
from distmnist.storage import urls

_log = logging.getLogger(__name__)

_GPUS = flags.DEFINE_string(
  'gpus',
  'auto',
  'GPUs to share out among the workers; a ps gets none. auto: all that are '
  'visible; 0: hide them from all tasks.',
)
_FORK_TASKS = flags.DEFINE_bool(
  'fork_tasks', True, 'Import TensorFlow once, then fork the tasks.'
)
_ISOLATE = flags.DEFINE_enum(
  'isolate',
  'auto',
  ['auto', 'on', 'off'],
  'Give the tasks of a cluster a network of their own (a Linux namespace), as'
  ' anyone who reaches the port of a task can execute code in it. auto: where'
  ' that is allowed.',
)


@flags.validator('gpus', 'expected auto or a number of GPUs >= 0')
def _is_gpus(value: str) -> bool:
  return value == 'auto' or value.isdecimal()


def launch(job: jobs.Job) -> int:
  """Runs the jobs.Job; returns its exit code."""
  gpus = gpus_lib.find_gpus(_GPUS.value, os.environ)
  num_tasks = job.num_ps + job.num_workers
  # As good as any if the tasks have their own network. Otherwise a real run
  # takes free ports.
  ports = range(FIRST_PORT, FIRST_PORT + num_tasks)
  namespace = None
  if not job.dry_run:
    logs_dir = task_logs.make_logs_dir(
      job.logs_dir, job.flag('logdir'), job.record
    )
    # A single task serves on no port.
    if num_tasks > 1:
      namespace = make_namespace(_ISOLATE.value, find_address(job))
    if not namespace:
      # Kept until the end of the run, so that a restart finds its port free.
      held_ports = ports_lib.hold_ports(num_tasks)
      ports = [held.getsockname()[1] for held in held_ports]
  hosts = [f'127.0.0.1:{port}' for port in ports]
  cluster = jobs.make_tasks(
    hosts[: job.num_ps],
    hosts[job.num_ps :],
    job.train_flags,
    num_cores=job.num_cores or len(os.sched_getaffinity(0)),
    gpus=gpus,
    module=job.module,
  )
  cluster = jobs.tell_min_workers(cluster, job.min_workers)
  # The evaluator shares the cores with the tasks that train.
  cluster += jobs.make_evaluator_tasks(job, num_threads=1)
  if job.dry_run:
    print(*(task.command for task in cluster), sep='\n')
    return 0
  first_tasks = []
  is_train, problem = job.module == TRAIN, job.flag('problem')
  # The import of a user's module may take seconds: its tasks check, too.
  if is_train and (not problem or problem in registry.find(PROBLEMS)):
    first_tasks.append(jobs.make_check_task(cluster[job.num_ps]))
  if is_train and namespace and not problem:
    # Where the other tasks run, there is no network for a download. What a
    # --problem prepares may overwrite its user's files: never unasked.
    first_tasks.append(jobs.make_data_task(job.train_flags))
  grace_secs = stop_grace.parse(job.given)
  host = fork_client.make_host(
    job.module, logs_dir, os.environ, _FORK_TASKS.value, namespace, grace_secs
  )
  return run_tasks.run(
    cluster,
    host,
    logs_dir,
    'on this machine',
    first_tasks=first_tasks,
    show_logs=job.show_logs,
    limits=restart_policy.from_job(job),
    stop_grace_secs=grace_secs,
    record=job.record,
  )


def find_address(job: jobs.Job) -> str | None:
  """Returns a flag because of which tasks need the network, or None."""
  given = {name: job.flag(name) for name in ('logdir', 'data_dir', 'resume')}
  given['data_dir'] = given['data_dir'] or os.environ.get('DISTMNIST_DATA_DIR')
  for name, value in given.items():
    if value and urls.is_remote(value):
      return f'--{name}={value}'
  return None


def make_namespace(
  wanted: str, address: str | None = None
) -> network_namespace.Namespace | None:
  """Returns the Namespace of the tasks, or None; logs which if it is auto.

  Args:
    wanted: the value of --isolate.
    address: a flag because of which the tasks need the network, or None.

  Raises:
    cli.UsageError: --isolate=on, but the tasks need the network.
    cli.RunError: --isolate=on, but this machine does not allow it.
  """
  if wanted == 'off':
    return None
  if address and wanted == 'on':
    raise cli.UsageError(
      f'--isolate=on, but {address} is reached over the network: give a path '
      'of this machine, or leave --isolate out'
    )
  if address:
    _log.info(
      f'the tasks are not isolated, as {address} is reached over the network: '
      f'{addresses.describe_exposure("the tasks")}'
    )
    return None
  try:
    namespace = network_namespace.make_namespace()
  except OSError as error:
    if wanted == 'on':
      raise cli.RunError(
        f'--isolate=on, but {error}: ask the administrator for the right, or'
        ' run with --isolate=auto where nobody else reaches this machine'
      ) from error
    _log.info(
      f'the tasks are not isolated ({error}): '
      f'{addresses.describe_exposure("the tasks")}'
    )
    return None
  if wanted == 'auto':
    _log.info('the tasks are isolated: they alone can reach their ports')
  return namespace
