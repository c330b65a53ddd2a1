import pytest

from distmnist.launching.kubernetes import pods
from tests.support.manifests import make_options

ARGV = ('python', '-m', 'distmnist.train', '--model=cnn')


def make_task(job_name='worker', argv=ARGV, **fields):
  """Returns (spec of the Pod of a task, its container)."""
  spec = pods.make_task(make_options(**fields), job_name, argv, {})
  (container,) = spec['containers']
  return spec, container


def env_of(container):
  return {e['name']: e['value'] for e in container['env']}


def test_a_worker_has_the_gpus_and_a_ps_none():
  _, worker = make_task('worker', gpus=2)
  assert worker['resources']['limits']['nvidia.com/gpu'] == 2
  assert 'CUDA_VISIBLE_DEVICES' not in env_of(worker)
  _, ps = make_task('ps', gpus=2)
  assert 'nvidia.com/gpu' not in ps['resources']['limits']
  assert env_of(ps)['CUDA_VISIBLE_DEVICES'] == ''
  own_flags = pods.make_resource_flags(make_options(gpus=2), 'worker')
  assert own_flags[-1] == '--num_gpus=2'


@pytest.mark.parametrize('job_name', ['ps', 'worker'])
def test_without_gpus_they_are_hidden_from_all(job_name):
  _, container = make_task(job_name)
  assert env_of(container)['CUDA_VISIBLE_DEVICES'] == ''
  assert 'nvidia.com/gpu' not in container['resources']['limits']
  own_flags = pods.make_resource_flags(make_options(), job_name)
  assert not any('num_gpus' in word for word in own_flags)


@pytest.mark.parametrize(
  ('cpu', 'requested', 'threads'),
  [('1', 1, 1), ('3', 3, 3), ('2500m', '2500m', 3), ('0.5', '0.5', 1)],
)
@pytest.mark.parametrize('job_name', ['ps', 'worker'])
def test_a_task_has_as_many_threads_as_cpus(job_name, cpu, requested, threads):
  resources = {
    'ps': {'cpu': '4', 'memory': '1Gi'},
    'worker': {'cpu': '4', 'memory': '1Gi'},
    job_name: {'cpu': cpu, 'memory': '7G'},
  }
  options = make_options(resources=resources)
  assert pods.make_resource_flags(options, job_name) == [
    f'--intra_op_parallelism_threads={threads}',
    f'--inter_op_parallelism_threads={max(2, threads)}',
  ]
  _, container = make_task(job_name, resources=resources)
  both = {'cpu': requested, 'memory': '7G'}
  assert container['resources'] == {'requests': both, 'limits': both}


def test_a_worker_has_the_volumes_and_a_ps_none():
  spec, container = make_task('worker')
  tmp = {'name': 'tmp', 'emptyDir': {'sizeLimit': '2Gi'}}
  assert spec['volumes'] == [
    tmp,
    {'name': 'data', 'persistentVolumeClaim': {'claimName': 'mnist-data'}},
    {'name': 'logs', 'persistentVolumeClaim': {'claimName': 'mnist-logs'}},
  ]
  assert container['volumeMounts'] == [
    {'name': 'tmp', 'mountPath': '/tmp'},
    {'name': 'data', 'mountPath': '/data'},
    {'name': 'logs', 'mountPath': '/logs'},
  ]
  # It reads no file, and writes none.
  spec, container = make_task('ps')
  assert spec['volumes'] == [tmp]
  assert container['volumeMounts'] == [{'name': 'tmp', 'mountPath': '/tmp'}]


def test_tensorboard_reads_the_logdir_and_writes_nothing():
  spec = pods.make_tensorboard(make_options(logdir='/logs/a'))
  (container,) = spec['containers']
  assert '--logdir=/logs/a' in container['args']
  (mount,) = [m for m in container['volumeMounts'] if m['name'] != 'tmp']
  assert mount == {'name': 'logs', 'mountPath': '/logs', 'readOnly': True}


@pytest.mark.parametrize(
  ('grace_secs', 'kill_secs'), [(2.5, 8), (25.0, 30), (120.0, 125)]
)
def test_kubernetes_kills_later_than_a_task_itself(grace_secs, kill_secs):
  spec, _ = make_task(stop_grace_secs=grace_secs)
  assert spec['terminationGracePeriodSeconds'] == kill_secs


def test_a_pod_takes_a_missing_task_for_late_and_not_for_wrong():
  # It may replace another one: a Pod is not told.
  _, container = make_task()
  assert env_of(container)['DISTMNIST_ATTEMPT'] == '2'


def test_what_kubernetes_would_replace_is_escaped():
  _, container = make_task(argv=(*ARGV[:3], '--a=$(HOME)', '--b=$$'))
  assert container['command'] == ['python', '-m', 'distmnist.train']
  assert container['args'] == ['--a=$$(HOME)', '--b=$$$$']


@pytest.mark.parametrize('job_name', ['ps', 'worker', 'tensorboard'])
def test_a_pod_can_do_no_harm(job_name):
  spec = (
    pods.make_tensorboard(make_options(user=4242))
    if job_name == 'tensorboard'
    else make_task(job_name, user=4242)[0]
  )
  assert spec['automountServiceAccountToken'] is False
  # What the Pod Security Standard "restricted" asks for, and more.
  security = spec['securityContext']
  assert security['runAsNonRoot'] is True
  assert {security[k] for k in ('runAsUser', 'runAsGroup', 'fsGroup')} == {4242}
  assert security['seccompProfile'] == {'type': 'RuntimeDefault'}
  (container,) = spec['containers']
  assert container['securityContext'] == {
    'allowPrivilegeEscalation': False,
    'readOnlyRootFilesystem': True,
    'capabilities': {'drop': ['ALL']},
  }
