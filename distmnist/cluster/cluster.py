"""The cluster and this task in it: hosts, devices, session config.

Every task has the same two lists of hosts, and its own place in them; see
cluster/role_flags.py for where it learns them. Without any hosts the same
program runs on one machine, as a worker 0 that is its own chief and keeps the
variables itself.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import tensorflow.compat.v1 as tf

from distmnist.cluster import addresses
from distmnist.common import cli


@dataclasses.dataclass(frozen=True)
class Cluster:
  """The cluster spec and this task's place in it.

  Attributes:
    ps_hosts, worker_hosts: 'host:port' of each; both empty for one process.
    job_name: 'ps', 'worker' or 'evaluator', which is not part of the cluster.
    task_index: the index within the job.
    start_timeout_secs: the wait for other tasks.
    num_gpus: the GPUs this worker computes on.
    wire_dtype: the dtype of float32 tensors between worker and ps.
    source: where all this was read: 'flags', 'TF_CONFIG', 'Slurm'; '' for one
      process that trains alone.
    evaluator_hosts: as far as they are named.
    chief_alias: what the source calls worker 0 if it has a name of its own,
      such as 'chief': the other workers then count from 0 there.
  """

  ps_hosts: tuple[str, ...] = ()
  worker_hosts: tuple[str, ...] = ()
  job_name: str = 'worker'
  task_index: int = 0
  start_timeout_secs: float = 60.0
  num_gpus: int = 0
  wire_dtype: str = 'float32'
  # Where a cluster was read from does not affect equality.
  source: str = dataclasses.field(default='', compare=False)
  evaluator_hosts: tuple[str, ...] = dataclasses.field(
    default=(), compare=False
  )
  chief_alias: str = dataclasses.field(default='', compare=False)

  @property
  def num_ps(self) -> int:
    return len(self.ps_hosts)

  @property
  def num_workers(self) -> int:
    return max(1, len(self.worker_hosts))

  @property
  def is_distributed(self) -> bool:
    return bool(self.worker_hosts)

  @property
  def is_chief(self) -> bool:
    return self.job_name == 'worker' and self.task_index == 0

  @property
  def name(self) -> str:
    return f'{self.job_name} {self.task_index}'

  def addresses(self, *job_names: str) -> dict[str, str]:
    """Returns {'worker 0': 'host:port', ...} of these jobs."""
    return {
      f'{job_name} {i}': address
      for job_name in job_names
      for i, address in enumerate(getattr(self, f'{job_name}_hosts'))
    }

  def other_addresses(self, *job_names: str) -> dict[str, str]:
    """Returns `addresses` without this task's."""
    found = self.addresses(*job_names)
    return {name: a for name, a in found.items() if name != self.name}

  @property
  def address(self) -> str:
    return self.addresses(self.job_name).get(self.name, 'this process')

  @property
  def port(self) -> int:
    """Where this task serves; only of one that has an address."""
    return int(self.address.rpartition(':')[2])

  @property
  def coordinator(self) -> str:
    """The task that keeps the tables all tasks share: ps 0, else worker 0."""
    return 'ps 0' if self.num_ps else 'worker 0'

  @property
  def coordinator_address(self) -> str:
    return (self.ps_hosts or self.worker_hosts)[0]

  @property
  def coordinator_device(self) -> str:
    """The device prefix of the coordinator."""
    return f'/job:{"ps" if self.num_ps else "worker"}/task:0'

  @property
  def task_device(self) -> str:
    """The device prefix of this task; empty for one process."""
    if not self.is_distributed:
      return ''
    return f'/job:{self.job_name}/task:{self.task_index}'

  @property
  def cpu_device(self) -> str:
    """Where this task's input and bookkeeping live."""
    return f'{self.task_device}/device:CPU:0'

  @property
  def tower_devices(self) -> list[str]:
    """Where this worker's model is computed: one device per GPU."""
    kind = 'GPU' if self.num_gpus else 'CPU'
    return [
      f'{self.task_device}/device:{kind}:{i}'
      for i in range(max(1, self.num_gpus))
    ]

  @property
  def compute_device(self) -> str:
    """Where this worker's copy of the center is, and its first tower."""
    return self.tower_devices[0]

  def device_setter(
    self, ps_strategy: Callable[[tf.Operation], int] | None = None
  ) -> Callable[[tf.Operation], str] | str:
    """Returns what places variables on the ps, and the rest here.

    Args:
      ps_strategy: which ps has a variable, by its op; by default each in turn.
    """
    if not self.num_ps:
      return self.compute_device
    return tf.train.replica_device_setter(
      worker_device=self.compute_device,
      ps_device='/job:ps/device:CPU:0',
      cluster=self.spec(),
      ps_strategy=ps_strategy,
    )

  def spec(self) -> tf.train.ClusterSpec:
    jobs = {'ps': list(self.ps_hosts), 'worker': list(self.worker_hosts)}
    return tf.train.ClusterSpec({job: h for job, h in jobs.items() if h})

  def session_config(
    self, server_config: tf.ConfigProto, with_workers: bool = False
  ) -> tf.ConfigProto:
    """Returns `server_config` with device filters, for this task's sessions.

    The filters keep the other workers out of the session, so that none of
    them can hold it up.

    Args:
      server_config: that of this task's server.
      with_workers: whether to let them in, as a step without a ps has ops on
        them. All must then be there before the session is made.
    """
    config = tf.ConfigProto()
    config.CopyFrom(server_config)
    if self.is_distributed:
      workers = '/job:worker' if with_workers else self.task_device
      config.device_filters.extend(['/job:ps', workers])
    return config


def make_cluster(
  ps_hosts: tuple[str, ...],
  worker_hosts: tuple[str, ...],
  job_name: str | None,
  task_index: int | None,
  **settings: Any,
) -> Cluster:
  """Checks the hosts and this task's place before anything starts.

  Args:
    ps_hosts, worker_hosts: 'host:port' of each task.
    job_name: 'ps', 'worker', 'evaluator' or None; None is valid only without
      hosts, and an evaluator needs no hosts.
    task_index: likewise.
    **settings: further fields of Cluster.

  Returns:
    Cluster.

  Raises:
    cli.UsageError: one clear line on what does not fit.
  """
  if job_name == 'evaluator':
    return Cluster(
      ps_hosts, worker_hosts, job_name, task_index or 0, **settings
    )
  if not ps_hosts and not worker_hosts:
    if job_name == 'ps':
      raise cli.UsageError('--job_name=ps needs --ps_hosts and --worker_hosts')
    if task_index:
      raise cli.UsageError(
        f'--task_index={task_index} needs --worker_hosts: without hosts there '
        'is one worker, 0'
      )
    return Cluster(**settings)
  if not worker_hosts:
    raise cli.UsageError('--worker_hosts is empty: name at least one worker')
  if job_name is None:
    raise cli.UsageError('--job_name is missing: say ps or worker')
  hosts = ps_hosts if job_name == 'ps' else worker_hosts
  if task_index is None:
    raise cli.UsageError(
      f'--task_index is missing: say which of the {len(hosts)} {job_name} '
      'hosts this task is, from 0'
    )
  if not hosts:
    raise cli.UsageError('--job_name=ps, but --ps_hosts is empty: name one')
  if not 0 <= task_index < len(hosts):
    raise cli.UsageError(
      f'--task_index={task_index} is out of range: --{job_name}_hosts names '
      f'{len(hosts)}, so expected 0..{len(hosts) - 1}'
    )
  addresses.check_differ(ps_hosts + worker_hosts)
  return Cluster(ps_hosts, worker_hosts, job_name, task_index, **settings)


def describe_size(cluster: Cluster) -> str:
  """Returns how many tasks a cluster has: '2 ps, 1 worker'."""
  number = cluster.num_workers
  return f'{cluster.num_ps} ps, {number} worker{"s" if number > 1 else ""}'


def describe(cluster: Cluster, rule: str) -> str:
  """Returns who trains how: 'worker 0 at host:port on 1 GPU: async_sgd, ...'.

  Args:
    rule: its name.
  """
  number = cluster.num_gpus
  gpus = f' on {number} GPU{"s" if number > 1 else ""}' if number else ''
  return (
    f'{cluster.name} at {cluster.address}{gpus}: {rule}, '
    f'{describe_size(cluster)}'
  )


def name_in_source(cluster: Cluster, name: str) -> str:
  """Returns what the source calls a task, '' if it has the same name."""
  job, index = name.split()
  if job != 'worker' or not cluster.chief_alias:
    return ''
  if index == '0':
    return f'{cluster.chief_alias} 0'
  return f'worker {int(index) - 1}'


def format_tasks(cluster: Cluster) -> str:
  """Returns all tasks with their addresses, and which is this one.

  Returns:
    str of several lines.
  """
  rows = {'read from': [cluster.source or 'nothing: one process trains alone']}
  places = cluster.addresses('ps') | {'worker 0': 'trains alone'}
  places |= cluster.addresses('worker', 'evaluator')
  places.setdefault(cluster.name, cluster.address)
  rows |= {name: [place] for name, place in places.items()}
  rows['worker 0'].append('the chief')
  for name, notes in rows.items():
    if name.startswith('evaluator'):
      notes.append('outside of the cluster')
    elif alias := name_in_source(cluster, name):
      notes.append(f'{alias} of {cluster.source}')
  rows['this task'] = [cluster.name]
  width = max(map(len, rows))
  return '\n'.join(
    f'{name:<{width}}  {", ".join(notes)}' for name, notes in rows.items()
  )
