"""The manifests against the schemas, and against each other."""

import base64
import json

import pytest

from distmnist.cluster import tf_config
from distmnist.common import cli
from distmnist.launching import jobs
from distmnist.launching.kubernetes import manifests as manifests_lib
from tests.support import kube_schemas, manifests
from tests.support.manifests import (
  container_of,
  find,
  flags_of,
  selects,
  templates_of,
)
from tests.support.manifests import make_as_read as make

SHAPES = [{'num_ps': 0}, {'num_ps': 1, 'gpus': 2}, {'num_ps': 2}]
IDS = [str(shape) for shape in SHAPES]
each_kind = pytest.mark.parametrize('kind', manifests.KINDS)
each_shape = pytest.mark.parametrize('shape', SHAPES, ids=IDS)


@pytest.mark.daily(
  but=[
    "{'num_ps': 0}-job",
    "{'num_ps': 1, 'gpus': 2}-jobset",
    "{'num_ps': 2}-trainjob",
  ]
)
@pytest.mark.slow
@each_kind
@each_shape
def test_the_manifests_fit_the_schemas(kind, shape):
  fields = {**shape, 'queue': 'team', 'namespace': 'ml', 'evaluator': True}
  kube_schemas.validate(make(kind=kind, max_restarts=3, **fields))


@each_kind
def test_the_file_of_a_problem_is_mounted_in_each_task(kind):
  given = ('--problem=examples/mine.py',)
  documents = make(kind=kind, given=given, problem=b'x = 1\n')
  [config_map] = find(documents, 'ConfigMap').values()
  assert config_map['data'] == {'mine.py': 'x = 1\n'}
  kube_schemas.validate([config_map])
  for template in templates_of(documents).values():
    mounts = container_of(template)['volumeMounts']
    places = [m['mountPath'] for m in mounts if m['name'] == 'problem']
    volumes = [v for v in template['spec']['volumes'] if v['name'] == 'problem']
    assert places == ['/problem']
    named = config_map['metadata']['name']
    assert volumes == [{'name': 'problem', 'configMap': {'name': named}}]


def test_a_file_of_another_encoding_is_sent_as_it_is():
  source = '# coding: latin-1\nx = "\xe9"\n'.encode('latin-1')
  given = ('--problem=mine.py',)
  (config_map,) = find(make(given=given, problem=source), 'ConfigMap').values()
  assert 'data' not in config_map
  assert base64.b64decode(config_map['binaryData']['mine.py']) == source


def test_a_file_whose_name_kubernetes_does_not_take_is_refused():
  with pytest.raises(cli.UsageError, match='--problem=a/my task.py: Kuber'):
    make(given=('--problem=a/my task.py',), problem=b'x = 1')


@each_kind
def test_only_the_tasks_of_a_run_reach_its_ports(kind):
  fields = {'kind': kind, 'namespace': 'ml'}
  documents = make(**fields)
  # It is there before the first task.
  policy = documents[0]
  assert policy['kind'] == 'NetworkPolicy'
  spec = policy['spec']
  assert spec['policyTypes'] == ['Ingress']
  ((rule,),) = [spec['ingress']]
  assert rule['ports'] == [{'protocol': 'TCP', 'port': 2222}]
  # A peer without namespaceSelector is of this namespace.
  (peer,) = rule['from']
  assert peer == {'podSelector': spec['podSelector']}
  (selector,) = peer['podSelector'].values()
  assert all(selects(selector, t) for t in templates_of(documents).values())
  others = templates_of(make(**fields, name='other')).values()
  assert not any(selects(selector, template) for template in others)


@pytest.mark.parametrize(
  ('kind', 'queued'),
  [('job', ['Job'] * 3), ('jobset', ['JobSet']), ('trainjob', ['TrainJob'])],
)
def test_kueue_finds_what_is_to_be_admitted_and_nothing_else(kind, queued):
  documents = make(kind=kind, queue='team')
  assert queued == [
    document['kind']
    for document in documents
    if 'kueue.x-k8s.io/queue-name' in document['metadata']['labels']
  ]
  assert str(documents).count('kueue') == len(queued)


@each_kind
def test_without_a_namespace_it_is_that_of_kubectl(kind):
  assert 'namespace' not in str(make(kind=kind))
  named = make(kind=kind, namespace='ml')
  assert {d['metadata']['namespace'] for d in named} == {'ml'}
  assert str(named).count('namespace') == len(named)


@each_kind
def test_an_evaluator_sees_the_logs_and_serves_nowhere(kind):
  documents = make(kind=kind, evaluator=True)
  *_, (name, template) = templates_of(documents).items()
  assert template['metadata']['labels']['role'] == 'evaluator'
  container = container_of(template)
  assert 'ports' not in container
  assert '/logs' in {m['mountPath'] for m in container['volumeMounts']}
  is_told = '--job_name=evaluator' in container['args']
  assert is_told == (kind == 'job')  # Else by TF_CONFIG.
  if kind == 'job':
    assert name == 'mnist-evaluator-0' not in find(documents, 'Service')
    return
  jobset = find_jobset(documents)
  assert jobset['successPolicy']['targetReplicatedJobs'] == ['chief']
  last = jobset['replicatedJobs'][-1]
  rules = last['template']['spec']['podFailurePolicy']['rules']
  # However it ends, the JobSet goes on.
  assert {rule['action'] for rule in rules} == {'Ignore'}


@pytest.mark.parametrize('num_ps', [0, 1, 2])
def test_the_hosts_of_the_flags_are_services_and_lead_to_their_tasks(num_ps):
  documents = make(num_ps=num_ps)
  services, runs = find(documents, 'Service'), find(documents, 'Job')
  assert services.keys() == runs.keys()
  for name, run in runs.items():
    flags = flags_of(run['spec']['template'])
    hosts = [flags.get('ps_hosts'), flags.get('worker_hosts')]
    addresses = ','.join(filter(None, hosts)).split(',')
    assert addresses == [f'{other}:2222' for other in runs]
    # It is found under its own name.
    own = flags[f'{flags["job_name"]}_hosts'].split(',')
    assert own[int(flags['task_index'])] == f'{name}:2222'
  for name, service in services.items():
    selected = [
      other
      for other, template in templates_of(documents).items()
      if selects(service['spec']['selector'], template)
    ]
    assert selected == [name]


def find_jobset(documents):
  (spec,) = [
    each['spec']
    for document in documents
    for each in manifests.unpack(document)
    if each['kind'] == 'JobSet'
  ]
  return spec


@each_kind
def test_one_worker_alone_serves_nowhere(kind):
  documents = make(kind=kind, num_ps=0, num_workers=1)
  assert not find(documents, 'NetworkPolicy') and not find(documents, 'Service')
  [(name, template)] = templates_of(documents).items()
  assert name == ('mnist-worker-0' if kind == 'job' else 'chief')
  container = container_of(template)
  assert 'readinessProbe' not in container
  assert 'ports' not in container
  assert 'TF_CONFIG' not in str(container)
  assert not any('hosts' in word for word in container['args'])


@pytest.mark.parametrize(
  ('role', 'index', 'expected'), [('ps', 1, 'ps 1'), ('worker', 0, 'worker 1')]
)
def test_a_task_of_a_jobset_learns_who_it_is(role, index, expected):
  template = templates_of(make(kind='jobset', num_ps=2, num_workers=3))[role]
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
  manifests_lib.check_name(job, kind, 'a' * most)
  if kind != 'job':
    with pytest.raises(cli.UsageError, match=f'at most {most} with --kind='):
      manifests_lib.check_name(job, kind, 'a' * (most + 1))


def task_of(job_name='worker', **fields):
  """Returns (spec of the Pods of a kind of task, their container)."""
  for template in templates_of(make(**fields)).values():
    if template['metadata']['labels']['role'] == job_name:
      return template['spec'], container_of(template)
  raise AssertionError(job_name)


@pytest.mark.parametrize(
  ('kind', 'job_name', 'cpu', 'requested', 'threads'),
  [
    ('job', 'ps', '1', 1, 1),
    ('job', 'worker', '0.5', '0.5', 1),
    ('jobset', 'worker', '3', 3, 3),
    ('trainjob', 'ps', '2500m', '2500m', 3),
    ('trainjob', 'worker', '0.5', '0.5', 1),
  ],
)
def test_a_task_has_as_many_threads_as_cpus(
  kind, job_name, cpu, requested, threads
):
  resources = {
    'ps': {'cpu': '4', 'memory': '1Gi'},
    'worker': {'cpu': '4', 'memory': '1Gi'},
    job_name: {'cpu': cpu, 'memory': '7G'},
  }
  _, container = task_of(job_name, kind=kind, resources=resources)
  both = {'cpu': requested, 'memory': '7G'}
  assert container['resources'] == {'requests': both, 'limits': both}
  words = [word for word in container['args'] if '_op_parallelism_' in word]
  assert words == [
    f'--intra_op_parallelism_threads={threads}',
    f'--inter_op_parallelism_threads={max(2, threads)}',
  ]


@pytest.mark.parametrize(
  ('grace_secs', 'kill_secs'), [(2.5, 8), (25.0, 30), (120.0, 125)]
)
def test_kubernetes_kills_later_than_a_task_itself(grace_secs, kill_secs):
  spec, _ = task_of(stop_grace_secs=grace_secs)
  assert spec['terminationGracePeriodSeconds'] == kill_secs


def test_what_kubernetes_would_replace_is_escaped():
  _, container = task_of(train_flags=('--a=$(HOME)', '--b=$$'))
  assert container['command'] == ['python', '-m', 'distmnist.train']
  assert container['args'][-2:] == ['--a=$$(HOME)', '--b=$$$$']


@pytest.mark.parametrize('job_name', ['ps', 'worker', 'evaluator'])
def test_a_pod_can_do_no_harm(job_name):
  spec, container = task_of(job_name, evaluator=True)
  assert spec['automountServiceAccountToken'] is False
  # What the Pod Security Standard "restricted" asks for, and more.
  security = spec['securityContext']
  assert security['runAsNonRoot'] is True
  assert {security[k] for k in ('runAsUser', 'runAsGroup', 'fsGroup')} == {1000}
  assert security['seccompProfile'] == {'type': 'RuntimeDefault'}
  assert container['securityContext'] == {
    'allowPrivilegeEscalation': False,
    'readOnlyRootFilesystem': True,
    'capabilities': {'drop': ['ALL']},
  }
