"""overview: a cluster as --print_cluster shows it."""

import pytest

from distmnist.cluster import overview
from distmnist.cluster.cluster import Cluster

HOSTS = {'ps_hosts': ('p0:1',), 'worker_hosts': ('w0:1', 'w1:1')}


@pytest.mark.parametrize(
  'cluster, lines',
  [
    (
      Cluster(),
      [
        'read from  nothing: one process trains alone',
        'worker 0   trains alone, the chief',
        'this task  worker 0',
      ],
    ),
    (
      Cluster(**HOSTS, task_index=1, source='TF_CONFIG', chief_alias='chief'),
      [
        'read from  TF_CONFIG',
        'ps 0       p0:1',
        'worker 0   w0:1, the chief, chief 0 of TF_CONFIG',
        'worker 1   w1:1, worker 0 of TF_CONFIG',
        'this task  worker 1',
      ],
    ),
    (
      Cluster(**HOSTS, job_name='evaluator', source='TF_CONFIG'),
      [
        'read from    TF_CONFIG',
        'ps 0         p0:1',
        'worker 0     w0:1, the chief',
        'worker 1     w1:1',
        'evaluator 0  this process, outside of the cluster',
        'this task    evaluator 0',
      ],
    ),
    (
      Cluster(**HOSTS, job_name='ps', source='Slurm'),
      [
        'read from  Slurm',
        'ps 0       p0:1',
        'worker 0   w0:1, the chief',
        'worker 1   w1:1',
        'this task  ps 0',
      ],
    ),
  ],
)
def test_all_tasks_are_shown_and_which_is_this_one(cluster, lines):
  assert overview.format_tasks(cluster).splitlines() == lines
