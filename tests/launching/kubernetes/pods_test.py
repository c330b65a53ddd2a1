import pytest

from distmnist.launching.kubernetes import pods
from tests.support.manifests import make_options

ARGV = ('python', '-m', 'distmnist.train', '--model=cnn')


def make_task(job_name='worker', argv=ARGV, **fields):
  """Returns (spec of the Pod of a task, its container)."""
  spec = pods.make_task(make_options(**fields), job_name, argv, {})
  (container,) = spec['containers']
  return spec, container


@pytest.mark.parametrize(
  ('job_name', 'cpu', 'requested', 'threads'),
  [
    *(('ps', '1', 1, 1), ('worker', '3', 3, 3)),
    *(('ps', '2500m', '2500m', 3), ('worker', '0.5', '0.5', 1)),
  ],
)
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


@pytest.mark.parametrize(
  ('grace_secs', 'kill_secs'), [(2.5, 8), (25.0, 30), (120.0, 125)]
)
def test_kubernetes_kills_later_than_a_task_itself(grace_secs, kill_secs):
  spec, _ = make_task(stop_grace_secs=grace_secs)
  assert spec['terminationGracePeriodSeconds'] == kill_secs


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
