"""Runs all tasks on this machine."""

import glob
import os
import re

from absl import flags

from distmnist import (
  cli,
  exposure,
  isolation,
  processes,
  restarts,
  stop_grace,
  supervisor,
  task_logs,
)
from distmnist import ports as ports_lib
from distmnist import tasks as tasks_lib

_GPUS = flags.DEFINE_string(
  'gpus',
  'auto',
  'GPUs to share out among the workers; a ps gets none. auto: those that are'
  ' there, 0: hide them from all tasks.',
)
_FORK_TASKS = flags.DEFINE_bool(
  'fork_tasks', True, 'Import TensorFlow once, then fork the tasks.'
)
_ISOLATE = flags.DEFINE_enum(
  'isolate',
  'auto',
  ['auto', 'on', 'off'],
  'Give the tasks of a cluster a network of their own (a namespace of Linux):'
  ' whoever reaches a port of TensorFlow may run there what he likes. auto:'
  ' where it is allowed.',
)


@flags.validator('gpus', 'expected auto or a number of GPUs >= 0')
def _is_gpus(value):
  return value == 'auto' or value.isdecimal()


def launch(job):
  """Runs the tasks.Job; returns its exit code (int)."""
  gpus = find_gpus(_GPUS.value, os.environ, glob.glob('/dev/nvidia*'))
  num_tasks = job.num_ps + job.num_workers
  # As good as any where the tasks have a network of their own. Else a real run
  # takes ports that are free.
  ports = range(tasks_lib.FIRST_PORT, tasks_lib.FIRST_PORT + num_tasks)
  namespace = None
  if not job.dry_run:
    logs_dir = task_logs.make_logs_dir(job.logs_dir, job.flag('logdir'))
    # A task on its own serves nowhere.
    if num_tasks > 1:
      namespace = make_namespace(_ISOLATE.value)
    if not namespace:
      # Kept until the end of the run, so that a restart finds its port free.
      held_ports = ports_lib.hold_ports(num_tasks)
      ports = [held.getsockname()[1] for held in held_ports]
  hosts = [f'127.0.0.1:{port}' for port in ports]
  cluster = tasks_lib.make_tasks(
    hosts[: job.num_ps],
    hosts[job.num_ps :],
    job.train_flags,
    num_cores=len(os.sched_getaffinity(0)),
    gpus=gpus,
    module=job.module,
  )
  cluster = tasks_lib.tell_min_workers(cluster, job.min_workers)
  if job.dry_run:
    print(*(task.command for task in cluster), sep='\n')
    return 0
  data_task = None
  if namespace and job.module == tasks_lib.TRAIN:
    # There is no network for a download where the others run.
    data_task = tasks_lib.make_data_task(job.train_flags)
  return supervisor.run(
    cluster,
    logs_dir,
    'on this machine',
    data_task,
    job.show_logs,
    fork_tasks=_FORK_TASKS.value,
    limits=restarts.from_job(job),
    namespace=namespace,
    stop_grace_secs=stop_grace.parse(job.given),
  )


def make_namespace(wanted):
  """Returns the isolation.Namespace of the tasks, or None; auto says which.

  Args:
    wanted: str, the value of --isolate.

  Raises:
    cli.RunError: it must be, and this machine does not allow it.
  """
  if wanted == 'off':
    return None
  try:
    namespace = isolation.make_namespace()
  except OSError as error:
    if wanted == 'on':
      raise cli.RunError(
        f'--isolate=on, but {error}: ask the administrator for the right, or'
        ' run with --isolate=auto where nobody else reaches this machine'
      ) from error
    processes.say(
      f'the tasks are not isolated ({error}): {exposure.describe("the tasks")}'
    )
    return None
  if wanted == 'auto':
    processes.say('the tasks are isolated: they alone can reach their ports')
  return namespace


def find_gpus(wanted, environ, device_files):
  """Returns the devices to share out, [] to hide all, None to set nothing.

  Args:
    wanted: str, the value of --gpus.
    environ: dict; who limits the launcher by CUDA_VISIBLE_DEVICES limits the
      tasks.
    device_files: list of paths under /dev.

  Raises:
    cli.UsageError: more are wanted than CUDA_VISIBLE_DEVICES names.
  """
  names = environ.get('CUDA_VISIBLE_DEVICES')
  if names is not None:
    visible = [name.strip() for name in names.split(',') if name.strip()]
  else:
    found = [f for f in device_files if re.fullmatch('/dev/nvidia[0-9]+', f)]
    visible = [str(index) for index in range(len(found))]
  if wanted == 'auto':
    return visible or None
  if names is None:
    return [str(index) for index in range(int(wanted))]
  if int(wanted) > len(visible):
    raise cli.UsageError(
      f'--gpus={wanted}, but CUDA_VISIBLE_DEVICES={names} names'
      f' {len(visible)}: ask for no more, or name more'
    )
  return visible[: int(wanted)]
