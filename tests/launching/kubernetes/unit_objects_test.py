"""All tasks as one object, which tells each of them which one it is."""

import json

import pytest

from distmnist.cluster import tf_config
from distmnist.common import cli
from distmnist.launching import jobs
from distmnist.launching.kubernetes import unit_objects
from tests.support import manifests
from tests.support.manifests import container_of, find, flags_of
from tests.support.manifests import make_as_read as make


def find_jobset(documents):
  (spec,) = [
    each['spec']
    for document in documents
    for each in manifests.unpack(document)
    if each['kind'] == 'JobSet'
  ]
  return spec


def test_a_tfjob_is_not_restarted_unless_asked_to():
  spec = find(make(kind='tfjob'), 'TFJob')['mnist']['spec']
  replicas = spec['tfReplicaSpecs'].values()
  assert {r['restartPolicy'] for r in replicas} == {'Never'}
  assert 'backoffLimit' not in spec['runPolicy']


@pytest.mark.parametrize(
  ('num_ps', 'num_workers', 'replicas'),
  [
    (2, 3, {'PS': 2, 'Chief': 1, 'Worker': 2}),
    (1, 1, {'PS': 1, 'Chief': 1}),
    (0, 2, {'Chief': 1, 'Worker': 1}),
  ],
)
def test_a_tfjob_tells_the_tasks_who_they_are(num_ps, num_workers, replicas):
  documents = make(kind='tfjob', num_ps=num_ps, num_workers=num_workers)
  specs = find(documents, 'TFJob')['mnist']['spec']['tfReplicaSpecs']
  assert {kind: spec['replicas'] for kind, spec in specs.items()} == replicas
  for spec in specs.values():
    container = container_of(spec['template'])
    assert container['name'] == 'tensorflow'
    assert container['ports'] == [{'name': 'tfjob-port', 'containerPort': 2222}]
    # Kubeflow's Services give no address of a Pod that is not ready.
    assert 'readinessProbe' not in container
    given = set(flags_of(spec['template']))
    assert not given & {'job_name', 'task_index', 'ps_hosts', 'worker_hosts'}


@pytest.mark.parametrize(
  ('role', 'index', 'expected'), [('ps', 1, 'ps 1'), ('worker', 0, 'worker 1')]
)
def test_a_task_of_a_jobset_learns_who_it_is(role, index, expected):
  documents = make(kind='jobset', num_ps=2, num_workers=3)
  jobs = {
    job['metadata']['name']: job for job in manifests.find_jobs(documents[-1])
  }
  template = jobs[role]['spec']['template']
  env = {e['name']: e for e in container_of(template)['env']}
  field = env['TASK_INDEX']['valueFrom']['fieldRef']['fieldPath']
  assert field == "metadata.labels['batch.kubernetes.io/job-completion-index']"
  # As the kubelet does.
  config = env['TF_CONFIG']['value'].replace('$(TASK_INDEX)', str(index))
  cluster = tf_config.read_tf_config(config)
  assert f'{cluster.job_name} {cluster.task_index}' == expected
  assert cluster.ps_hosts == (
    'mnist-ps-0-0.mnist:2222',
    'mnist-ps-0-1.mnist:2222',
  )
  assert cluster.worker_hosts[0] == 'mnist-chief-0-0.mnist:2222'
  # A host is the Pod of that name: JOBSET-ROLE-0-INDEX.
  assert json.loads(config)['cluster']['worker'] == [
    'mnist-worker-0-0.mnist:2222',
    'mnist-worker-0-1.mnist:2222',
  ]


def test_one_worker_alone_is_a_chief_that_serves_nowhere():
  (document,) = make(kind='jobset', num_ps=0, num_workers=1)
  (job,) = document['spec']['replicatedJobs']
  container = container_of(job['template']['spec']['template'])
  assert job['name'] == 'chief'
  assert 'ports' not in container
  assert 'TF_CONFIG' not in str(container)


def test_a_trainjob_runs_the_jobset_of_a_runtime_of_its_own():
  documents = make(kind='trainjob')
  assert find_jobset(documents) == find_jobset(make(kind='jobset'))
  trainjob = find(documents, 'TrainJob')['mnist']
  runtime = find(documents, 'TrainingRuntime')['mnist']
  assert trainjob['spec']['runtimeRef'] == {
    'apiGroup': 'trainer.kubeflow.org',
    'kind': runtime['kind'],
    'name': runtime['metadata']['name'],
  }
  # Nothing by which Trainer would change the commands.
  assert 'mlPolicy' not in runtime['spec']
  assert 'ancestor-step' not in str(runtime)


@pytest.mark.parametrize(
  ('kind', 'num_workers', 'evaluator', 'most'),
  [
    ('jobset', 2, False, 63 - 17),
    ('jobset', 2, True, 63 - 20),
    ('trainjob', 12, False, 63 - 18),
    ('job', 12, True, 51),
  ],
)
def test_a_name_leaves_room_for_that_of_a_pod(
  kind, num_workers, evaluator, most
):
  job = jobs.Job(1, num_workers, evaluator=evaluator)
  unit_objects.check_name(job, kind, 'a' * most)
  if kind != 'job':
    with pytest.raises(cli.UsageError, match=f'at most {most} with --kind='):
      unit_objects.check_name(job, kind, 'a' * (most + 1))


def test_limits_of_time_are_in_the_run_policy_of_a_tfjob():
  documents = make(kind='tfjob', ttl_secs=60, deadline_secs=3600)
  policy = find(documents, 'TFJob')['mnist']['spec']['runPolicy']
  assert policy['activeDeadlineSeconds'] == 3600
  assert policy['ttlSecondsAfterFinished'] == 60
