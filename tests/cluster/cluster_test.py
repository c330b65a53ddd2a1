"""cluster: its tasks, this task, where variables and computation go."""

import pytest
import tensorflow.compat.v1 as tf

from distmnist.cluster import cluster as cluster_lib
from distmnist.cluster import server as server_lib
from distmnist.cluster.cluster import Cluster
from distmnist.common import cli

PS, WORKERS = ('p0:1', 'p1:1'), ('w0:1', 'w1:1', 'w2:1')
HOSTS = {'ps_hosts': ('p0:1',), 'worker_hosts': ('w0:1', 'w1:1')}


@pytest.mark.parametrize(
  'ps_hosts, worker_hosts, job_name, task_index, named',
  [
    ((), (), 'ps', 0, '--job_name=ps'),
    ((), (), 'worker', 2, '--task_index=2'),
    (PS, (), 'ps', 0, '--worker_hosts'),
    (PS, WORKERS, None, 0, '--job_name'),
    (PS, WORKERS, 'worker', None, '--task_index'),
    (PS, WORKERS, 'worker', 3, '--task_index=3'),
    (PS, WORKERS, 'ps', 2, '--task_index=2'),
    (PS, (*WORKERS, 'p1:1'), 'worker', 0, 'p1:1'),
  ],
)
def test_an_identity_that_does_not_fit_is_one_line(
  ps_hosts, worker_hosts, job_name, task_index, named
):
  with pytest.raises(cli.UsageError, match=f'^{named}.*$'):
    cluster_lib.make_cluster(ps_hosts, worker_hosts, job_name, task_index)


def test_a_worker_knows_its_place():
  cluster = cluster_lib.make_cluster(PS, WORKERS, 'worker', 1)
  assert (cluster.num_ps, cluster.num_workers) == (2, 3)
  assert cluster.is_distributed
  assert not cluster.is_chief
  assert (cluster.name, cluster.address) == ('worker 1', 'w1:1')
  assert cluster.addresses('ps') == {'ps 0': 'p0:1', 'ps 1': 'p1:1'}
  assert cluster.task_device == '/job:worker/task:1'
  assert cluster.cpu_device == '/job:worker/task:1/device:CPU:0'
  assert cluster.compute_device == '/job:worker/task:1/device:CPU:0'
  assert cluster.spec().as_dict() == {'ps': [*PS], 'worker': [*WORKERS]}


def test_worker_0_and_no_ps_is_the_chief():
  assert cluster_lib.make_cluster(PS, WORKERS, 'worker', 0).is_chief
  assert not cluster_lib.make_cluster(PS, WORKERS, 'ps', 0).is_chief


def test_no_hosts_are_one_process_that_is_its_own_chief():
  cluster = cluster_lib.make_cluster((), (), None, None)
  assert cluster == cluster_lib.make_cluster((), (), 'worker', 0)
  assert (cluster.num_ps, cluster.num_workers) == (0, 1)
  assert cluster.is_chief
  assert not cluster.is_distributed
  assert (cluster.name, cluster.address) == ('worker 0', 'this process')
  assert (cluster.task_device, cluster.cpu_device) == ('', '/device:CPU:0')
  assert server_lib.make_server(cluster, tf.ConfigProto()) is None


def test_workers_without_a_ps_are_a_cluster():
  cluster = cluster_lib.make_cluster((), ('w0:1',), 'worker', 0)
  assert cluster.is_distributed
  assert cluster.spec().as_dict() == {'worker': ['w0:1']}
  assert cluster.device_setter() == '/job:worker/task:0/device:CPU:0'


def test_a_gpu_computes_and_the_cpu_keeps_the_books():
  cluster = cluster_lib.make_cluster(PS, WORKERS, 'worker', 2, num_gpus=1)
  assert cluster.compute_device == '/job:worker/task:2/device:GPU:0'
  assert cluster.cpu_device == '/job:worker/task:2/device:CPU:0'


def test_variables_go_to_the_ps_in_turn_and_the_rest_stays(tf_session):
  cluster = cluster_lib.make_cluster(PS, WORKERS, 'worker', 1, num_gpus=1)
  with tf.device(cluster.device_setter()):
    variables = [tf.get_variable(f'v{i}', [2]) for i in range(3)]
    product = variables[0] * 2
  devices = [v.device for v in variables]
  assert devices == [f'/job:ps/task:{i}/device:CPU:0' for i in (0, 1, 0)]
  assert product.device == '/job:worker/task:1/device:GPU:0'


def test_one_process_keeps_its_variables(tf_session):
  with tf.device(cluster_lib.Cluster().device_setter()):
    assert tf.get_variable('v', [2]).device == '/device:CPU:0'


def test_a_session_sees_the_ps_and_itself_alone():
  cluster = cluster_lib.make_cluster(PS, WORKERS, 'worker', 1)
  given = tf.ConfigProto(intra_op_parallelism_threads=3)
  config = cluster.session_config(given)
  assert list(config.device_filters) == ['/job:ps', '/job:worker/task:1']
  assert config.intra_op_parallelism_threads == 3
  assert not given.device_filters
  assert not cluster_lib.Cluster().session_config(given).device_filters


def test_without_a_ps_a_session_sees_all_workers():
  cluster = cluster_lib.make_cluster((), WORKERS, 'worker', 1)
  config = cluster.session_config(tf.ConfigProto(), with_workers=True)
  assert list(config.device_filters) == ['/job:ps', '/job:worker']


def test_a_tower_a_gpu(set_flags):
  member = cluster_lib.make_cluster(PS, WORKERS, 'worker', 2, num_gpus=3)
  assert member.tower_devices == [
    f'/job:worker/task:2/device:GPU:{i}' for i in range(3)
  ]
  assert cluster_lib.Cluster().tower_devices == ['/device:CPU:0']


@pytest.mark.parametrize(
  'num_gpus, gpus', [(0, ''), (1, ' on 1 GPU'), (2, ' on 2 GPUs')]
)
def test_a_task_is_told_of_with_its_gpus(num_gpus, gpus):
  member = cluster_lib.make_cluster(PS, WORKERS, 'worker', 1, num_gpus=num_gpus)
  assert cluster_lib.describe(member, 'easgd') == (
    f'worker 1 at {WORKERS[1]}{gpus}: easgd, {len(PS)} ps, {len(WORKERS)} '
    'workers'
  )
  assert cluster_lib.describe_size(cluster_lib.Cluster()) == '0 ps, 1 worker'


def test_an_evaluator_needs_no_hosts():
  alone = cluster_lib.make_cluster((), (), 'evaluator', None)
  assert (alone.name, alone.is_distributed) == ('evaluator 0', False)
  hosts = ('a:1',), ('b:1', 'c:1')
  second = cluster_lib.make_cluster(*hosts, 'evaluator', 1)
  assert second.name == 'evaluator 1' and not second.is_chief


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
  assert cluster_lib.format_tasks(cluster).splitlines() == lines
