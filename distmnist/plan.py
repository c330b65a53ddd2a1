"""Before anything runs: what lies where, what moves, and how long that takes.

  python -m distmnist.plan --num_ps=2 --num_workers=3 --model=vgg19

takes the flags of train, hosts included; without hosts, those of launch say how
many tasks there are. It starts nothing and reads no images; for a --problem it
loads the training data to learn their shapes.
"""

from __future__ import annotations

import distmnist.runtime  # noqa: F401  TensorFlow, quiet and in graph mode.

# isort: split
import dataclasses
from collections.abc import Iterable, Iterator, Mapping

import tensorflow.compat.v1 as tf
from absl import flags

from distmnist import train  # noqa: F401  All its flags.
from distmnist.cluster import cluster as cluster_lib
from distmnist.cluster import role_flags
from distmnist.common import cli, console
from distmnist.common.names import LAUNCH, PACKAGE
from distmnist.data import input_pipeline
from distmnist.exchange import traffic as traffic_lib
from distmnist.launching import cluster_flags
from distmnist.nn import groups
from distmnist.training import chief, evaluation, flag_checks
from distmnist.training import step as step_lib
from distmnist.training.problems import problem as problem_lib
from distmnist.training.problems import (
  problem_data,
  problem_errors,
  problem_module,
  table_batches,
  table_checks,
  table_memory,
)
from distmnist.transport import sharding

_MBITS = flags.DEFINE_multi_integer(
  'mbits',
  [100, 1000, 10000],
  'Megabits a second of each host in each direction; may be given several '
  'times.',
  lower_bound=1,
)

# What --help explains.
_FIRST_FLAGS = (
  *('num_ps', 'num_workers', 'launcher', 'ps_hosts', 'worker_hosts'),
  'strategy',
  *('model', 'dataset', 'problem', 'optimizer', 'batch_size'),
  *('partitioner', 'placement', 'wire_dtype', 'mbits'),
)
# Whose flags are taken, as a launch is planned by its own, but not explained.
_OF_LAUNCH = LAUNCH, f'{PACKAGE}.spark'


def main() -> None:
  console.print_logs(print)
  cluster = make_cluster()
  problem = problem_lib.from_flags()
  name, step, held, traffic = build(cluster, problem)
  with held[0].graph.as_default():
    growth = table_memory.describe_growth(cluster.num_ps)
    validation = evaluation.describe_fetch()
  print(f'{name}, {cluster_lib.describe_size(cluster)}; {problem.describe()}')
  for line in format_variables(step.center, step.moved_by):
    print(line)
  if cluster.num_ps:
    print(sharding.format_bytes_per_ps(held, cluster.num_ps))
  if growth:
    print(growth)
  if not cluster.is_distributed:
    print('one process: nothing moves')
    return
  print(traffic.format())
  for line in traffic.notes:
    print(line)
  with problem_errors.explained():
    rows = traffic.has_tables and table_batches.measure(
      cluster, problem, flags.FLAGS.batch_size
    )
  if rows:
    print(rows.format())
    traffic = traffic.with_rows(rows.pulled, rows.pushed)
  if chief.validates() and validation:
    print(validation)
  for mbits in _MBITS.value:
    secs = traffic.compute_step_secs(mbits * 1e6 / 8)
    print(
      f'{mbits:,} Mbit/s: {1000 * secs:,.2f} ms a step at least, '
      f'{1 / secs:,.1f} steps/s a worker'
    )
    helps = traffic.compute_helps(mbits * 1e6 / 8)
    if helps:
      told = ', '.join(f'{1000 * s:,.2f} ms by {name}' for name, s in helps)
      print(f'  the links of {traffic.narrowest} are the narrowest; {told}')


def build(
  cluster: cluster_lib.Cluster, problem: problem_lib.Problem
) -> tuple[str, step_lib.Step, list[tf.Variable], traffic_lib.Traffic]:
  """Builds, but never runs, a step of the rule that the flags name.

  Returns:
    (name of the rule, step, all variables, traffic).

  Raises:
    cli.UsageError: the flags contradict each other.
  """
  name, strategy = flag_checks.make_strategy(cluster)
  table_checks.settle(problem, strategy)
  with tf.Graph().as_default():
    placement = step_lib.make_global_step(cluster)
    slice_ = input_pipeline.Slice(problem_data.make_batch(problem, 1))
    step = step_lib.build_step(
      cluster, strategy, problem, [slice_], placement=placement
    )
    traffic = traffic_lib.compute_traffic(
      cluster, strategy, step.update, tf.trainable_variables()
    )
    return name, step, tf.global_variables(), traffic


def make_cluster() -> cluster_lib.Cluster:
  """Returns the cluster as worker 0 sees it; raises cli.UsageError."""
  given = flags.FLAGS
  if given.worker_hosts or given.ps_hosts:
    # Plan as worker 0: all workers move the same amount.
    given.job_name, given.task_index = 'worker', 0
    return role_flags.from_flags()
  is_local = cluster_flags.LAUNCHER.value == 'local'
  ps_hosts, worker_hosts = (
    tuple(
      f'127.0.0.1:{2222 + i}' if is_local else f'{job}{i}:2222'
      for i in range(number)
    )
    for job, number in (
      ('ps', cluster_flags.NUM_PS.value),
      ('worker', cluster_flags.NUM_WORKERS.value),
    )
  )
  if not ps_hosts and len(worker_hosts) == 1:
    worker_hosts = ()
  return dataclasses.replace(
    role_flags.from_flags(), ps_hosts=ps_hosts, worker_hosts=worker_hosts
  )


def format_variables(
  variables: Iterable[tf.Variable], moved_by: Mapping[str, str]
) -> Iterator[str]:
  """Yields one line per shard: name, shape, ps and bytes, in columns.

  Args:
    variables: the shards.
    moved_by: see step.Step; a column more where it is not empty.
  """
  rows = [('variable', 'shape', 'ps', 'bytes', 'moved by' if moved_by else '')]
  for variable in variables:
    device = tf.DeviceSpec.from_string(variable.device)
    place = str(device.task) if device.job == 'ps' else '-'
    shape = ' x '.join(str(n) for n in variable.shape.as_list()) or 'scalar'
    size = variable.shape.num_elements() * variable.dtype.size
    by = moved_by.get(groups.find_name(variable), '-') if moved_by else ''
    rows.append((variable.op.name, shape, place, f'{size:,}', by))
  columns = list(zip(*rows, strict=True))[:-1]
  widths = [max(map(len, column)) for column in columns]
  for name, shape, place, size, by in rows:
    line = (
      f'{name:<{widths[0]}}  {shape:<{widths[1]}}  {place:>{widths[2]}}  '
      f'{size:>{widths[3]}}'
    )
    yield f'{line}  {by}' if by else line


def is_shown(name: str) -> bool:
  """Whether --help tells of a flag; most of launch's change no plan."""
  home = flags.FLAGS.find_module_defining_flag(name) or ''
  return name in _FIRST_FLAGS or not home.startswith(_OF_LAUNCH)


def run() -> None:
  cli.run(
    main,
    first_flags=_FIRST_FLAGS,
    prepare=problem_module.import_named,
    is_shown=is_shown,
  )


if __name__ == '__main__':
  run()
