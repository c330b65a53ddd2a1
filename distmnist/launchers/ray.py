"""Runs the tasks on Ray, each as an actor.

  python -m distmnist.launch --launcher=ray --ray_address=host:6379 \\
      --num_ps=1 --num_workers=2 -- --flagfile=... --logdir=/shared/run

--logdir is a folder that all nodes share, or a store. The log of each task is
kept here, and ray.log beside them has what Ray itself says.
"""

from __future__ import annotations

import dataclasses
import logging
import os

from absl import flags

from distmnist.cluster import addresses
from distmnist.common import stop_grace
from distmnist.common.names import FIRST_PORT, LAUNCH_ID
from distmnist.launching import jobs, problem_file, run_tasks
from distmnist.launching.ray import ray_cluster, ray_host
from distmnist.launching.screen import task_logs
from distmnist.launching.supervisor import restart_policy

_log = logging.getLogger(__name__)

_ADDRESS = flags.DEFINE_string(
  'ray_address',
  None,
  'Where Ray is, as ray.init takes it: host:6379, or auto for a Ray that runs'
  ' on this machine. Default: $RAY_ADDRESS, else auto, else a new Ray of this'
  ' machine that ends with the run.',
)
_CPUS = flags.DEFINE_integer(
  'ray_cpus', 1, 'CPUs of each worker; a ps gets one.', lower_bound=1
)
_GPUS = flags.DEFINE_integer(
  'ray_gpus',
  None,
  'GPUs of each worker; a ps gets none. Default: 1 if Ray has one for each'
  ' worker, else 0.',
  lower_bound=0,
)
_DIR = flags.DEFINE_string(
  'ray_dir', None, 'Folder on the nodes to run in. Default: the same as here.'
)
_WAIT_SECS = flags.DEFINE_float(
  'ray_wait_secs',
  120,
  'Seconds to wait for room on Ray, and then for it to start the tasks.',
  lower_bound=0,
)

# Variables that the tasks get from here, if they are set.
_SENT = 'DISTMNIST_DATA_DIR', LAUNCH_ID


def launch(job: jobs.Job) -> int:
  """Runs the jobs.Job; returns its exit code."""
  # Ray chooses the nodes, and an actor its port.
  stand_ins = [
    f'node-{i}:{FIRST_PORT}' for i in range(job.num_ps + job.num_workers)
  ]
  cluster = jobs.make_tasks(
    stand_ins[: job.num_ps],
    stand_ins[job.num_ps :],
    job.train_flags,
    num_cores=_CPUS.value * job.num_workers,
    module=job.module,
  )
  evaluator = jobs.make_evaluator_tasks(job, 'its actor', num_threads=1)
  if job.dry_run:
    print(*(task.command for task in [*cluster, *evaluator]), sep='\n')
    _log.info(
      'not to be pasted: Ray chooses the nodes, their actors the ports, and '
      f'{stand_ins[0]} and so on stand in for them'
    )
    return 0
  check_ready()
  logs_dir = task_logs.make_logs_dir(
    job.logs_dir, job.flag('logdir'), job.record
  )
  grace_secs = stop_grace.parse(job.given)
  env = {name: os.environ[name] for name in _SENT if name in os.environ}
  env |= problem_file.make_env(job.flag('problem'))
  log = os.path.join(logs_dir, 'ray.log')
  with ray_cluster.opened(_ADDRESS.value, log):
    gpus = ray_cluster.choose_gpus(_GPUS.value, job.num_workers)
    bundle = {'CPU': _CPUS.value, **({'GPU': gpus} if gpus else {})}
    tasks = [*cluster, *evaluator]
    host = ray_host.RayHost(
      [cluster, *([evaluator] if evaluator else [])],
      {t.name: bundle if t.job_name == 'worker' else {'CPU': 1} for t in tasks},
      os.path.abspath(os.path.expanduser(_DIR.value or os.getcwd())),
      env,
      grace_secs,
      _WAIT_SECS.value,
    )
    if len(cluster) > 1:
      _log.info(addresses.describe_exposure('the tasks'))
    return run_tasks.run(
      # What is printed about a task says on which node it was.
      [dataclasses.replace(t, host='its actor', port=None) for t in tasks],
      host,
      logs_dir,
      'on Ray',
      show_logs=job.show_logs,
      limits=restart_policy.Limits(job.max_restarts, restart_together=True),
      stop_grace_secs=grace_secs,
      record=job.record,
    )


def check_ready() -> None:
  """Checks that ray is installed here, and that --ray_address answers.

  Raises:
    cli.RunError: one of the two fails.
  """
  ray_cluster.check_installed()
  ray_cluster.check_answers(_ADDRESS.value)
