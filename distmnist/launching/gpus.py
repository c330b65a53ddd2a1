"""Shares GPUs out among the tasks of this machine or of each host."""

from __future__ import annotations

import glob
from collections.abc import Mapping

from distmnist.common import cli
from distmnist.common.names import GPU_FILES
from distmnist.launching import jobs


def find_gpus(wanted: str, environ: Mapping[str, str]) -> list[str] | None:
  """Returns the devices to share out, [] to hide all, None to set nothing.

  Args:
    wanted: the value of --gpus.
    environ: a CUDA_VISIBLE_DEVICES that limits the launcher limits the tasks
      too.

  Raises:
    cli.UsageError: more are wanted than CUDA_VISIBLE_DEVICES names.
  """
  names = environ.get('CUDA_VISIBLE_DEVICES')
  if names is not None:
    visible = [name.strip() for name in names.split(',') if name.strip()]
  else:
    visible = [str(index) for index in range(len(glob.glob(GPU_FILES)))]
  if wanted == 'auto':
    return visible or None
  if names is None:
    return [str(index) for index in range(int(wanted))]
  if int(wanted) > len(visible):
    raise cli.UsageError(
      f'--gpus={wanted}, but CUDA_VISIBLE_DEVICES={names} names '
      f'{len(visible)}: ask for at most that many, or name more'
    )
  return visible[: int(wanted)]


def share_on_hosts(
  cluster: list[jobs.Task], num_gpus: int | None
) -> list[jobs.Task]:
  """Returns the tasks with the devices that each may see.

  Args:
    num_gpus: the GPUs of each host, given to its workers in turn; None leaves
      the tasks as they are.
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
    shared.append(task.with_env(('CUDA_VISIBLE_DEVICES', device)))
  return shared
