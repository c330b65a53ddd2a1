"""Before anything runs: what lies where, what moves, and how long that takes.

  python -m distmnist.plan --num_ps=2 --num_workers=3 --model=vgg19

takes the flags of train, hosts included; without hosts those of launch say how
many tasks there are. It starts nothing, and reads no images; of a --problem it
loads the training data, for their shapes.
"""

import distmnist.runtime  # noqa: F401  TensorFlow, quiet and in graph mode.

# isort: split
import dataclasses

import tensorflow.compat.v1 as tf
from absl import flags

from distmnist import train  # noqa: F401  All its flags.
from distmnist.cluster import role_flags
from distmnist.common import cli, console
from distmnist.data import input_pipeline
from distmnist.exchange import sharding
from distmnist.launching import cluster_flags
from distmnist.training import flag_checks, problem_data
from distmnist.training import problem as problem_lib
from distmnist.training import step as step_lib

_MBITS = flags.DEFINE_multi_integer(
  'mbits',
  [100, 1000, 10000],
  'Megabits a second of each host, to and fro at the same time',
  lower_bound=1,
)

# What --help explains.
_FIRST_FLAGS = (
  *('num_ps', 'num_workers', 'ps_hosts', 'worker_hosts', 'strategy'),
  *('model', 'dataset', 'problem', 'optimizer', 'batch_size'),
  *('partitioner', 'placement', 'wire_dtype', 'mbits'),
)


def main():
  console.print_logs(print)
  cluster = make_cluster()
  name, strategy = flag_checks.make_strategy(cluster)
  problem = problem_lib.from_flags()
  with tf.Graph().as_default():
    slice_ = input_pipeline.Slice(problem_data.make_batch(problem, 1))
    step = step_lib.build_step(cluster, strategy, problem, [slice_])
    held = tf.global_variables()
    trained = tf.trainable_variables()
    traffic = sharding.compute_traffic(cluster, strategy, step.update, trained)
  print(
    f'{name}, {cluster.num_ps} ps, {cluster.num_workers} workers; '
    f'{problem.describe()}'
  )
  for line in format_variables(step.center):
    print(line)
  if cluster.num_ps:
    print(sharding.format_bytes_per_ps(held, cluster.num_ps))
  if not cluster.is_distributed:
    print('one process: nothing moves')
    return
  print(traffic.format())
  for mbits in _MBITS.value:
    secs = traffic.compute_step_secs(mbits * 1e6 / 8)
    print(
      f'{mbits:,} Mbit/s: {1000 * secs:,.2f} ms a step at least, '
      f'{1 / secs:,.1f} steps/s a worker'
    )


def make_cluster():
  """Returns the cluster.Cluster of worker 0; raises cli.UsageError."""
  given = flags.FLAGS
  if given.worker_hosts or given.ps_hosts:
    # Whoever asks is worker 0: all of them move the same.
    given.job_name, given.task_index = 'worker', 0
    return role_flags.from_flags()
  ps_hosts, worker_hosts = (
    tuple(f'{job}{i}:2222' for i in range(number))
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


def format_variables(variables):
  """Yields a line a shard: name, shape, ps and bytes, in columns."""
  rows = [('variable', 'shape', 'ps', 'bytes')]
  for variable in variables:
    device = tf.DeviceSpec.from_string(variable.device)
    place = str(device.task) if device.job == 'ps' else '-'
    shape = ' x '.join(str(n) for n in variable.shape.as_list()) or 'scalar'
    size = variable.shape.num_elements() * variable.dtype.size
    rows.append((variable.op.name, shape, place, f'{size:,}'))
  widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
  for name, shape, place, size in rows:
    yield (
      f'{name:<{widths[0]}}  {shape:<{widths[1]}}  {place:>{widths[2]}}  '
      f'{size:>{widths[3]}}'
    )


def run():
  cli.run(main, first_flags=_FIRST_FLAGS)


if __name__ == '__main__':
  run()
