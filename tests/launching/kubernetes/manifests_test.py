"""The manifests against the schemas, and against each other."""

import base64
import copy
import functools
import itertools
import json

import pytest

from distmnist.common import cli
from tests.support import manifests
from tests.support.manifests import (
  container_of,
  find,
  flags_of,
  selects,
  templates_of,
)
from tests.support.manifests import make_as_read as make
from tests.support.paths import REPO, TESTS

yaml = pytest.importorskip('yaml')

ADD_ONS = 'JobSet', 'TFJob', 'TrainJob', 'TrainingRuntime'
# What a cluster may ask for.
ALL_RULES = {
  'pod_fields': {
    'nodeSelector': {'pool': 'gpu'},
    'tolerations': [{'key': 'nvidia.com/gpu', 'operator': 'Exists'}],
    'priorityClassName': 'high',
    'imagePullSecrets': [{'name': 'registry'}],
  },
  'pull_policy': 'Always',
  'tmp_size': '1Gi',
  'queue': 'team',
  'ttl_secs': 60,
  'deadline_secs': 3600,
  'egress': ('10.0.0.0/8', 'fd00::/8'),
}
# Before it the schema wants onPodConditions where they cannot be.
OLDEST = '1.29'
SHAPES = [{'num_ps': 0, 'gpus': 0}, {'num_ps': 1, 'gpus': 2}, {'num_ps': 2}]
IDS = [str(shape) for shape in SHAPES]
each_kind = pytest.mark.parametrize('kind', manifests.KINDS)
each_shape = pytest.mark.parametrize('shape', SHAPES, ids=IDS)


@pytest.fixture(scope='module')
def kubernetes_validate():
  return pytest.importorskip('kubernetes_validate')


@pytest.fixture(scope='module')
def make_validator():
  """Returns make(kind of an add-on) -> jsonschema validator of its objects."""
  jsonschema = pytest.importorskip('jsonschema')

  @functools.cache
  def make(kind):
    schema = read_schema(kind)
    forbid_unknown(schema)
    return jsonschema.Draft202012Validator(schema)

  return make


def read_schema(kind):
  if kind != 'TFJob':
    path = TESTS / 'support' / 'schemas' / f'{kind}.json'
    return json.loads(path.read_text())
  path = REPO.parent / 'shared' / 'schemas' / 'kubeflow.org_tfjobs.yaml'
  if not path.exists():
    pytest.skip(f'no schema of a TFJob: {path}')
  loader = getattr(yaml, 'CSafeLoader', yaml.SafeLoader)
  (version,) = yaml.load(path.read_text(), loader)['spec']['versions']
  return version['schema']['openAPIV3Schema']


def forbid_unknown(schema):
  """Makes a misspelt field an error, as kubectl does."""
  if isinstance(schema, list):
    for part in schema:
      forbid_unknown(part)
  elif isinstance(schema, dict):
    if schema.get('type') == 'object' and isinstance(
      schema.get('properties'), dict
    ):
      schema.setdefault('additionalProperties', False)
    for part in schema.values():
      forbid_unknown(part)


@pytest.mark.slow
@each_kind
@each_shape
def test_the_manifests_fit_the_schemas(
  kubernetes_validate, make_validator, kind, shape
):
  fields = {**shape, **ALL_RULES, 'tensorboard': True, 'namespace': 'ml'}
  fields['evaluator'] = True
  documents = make(kind=kind, max_restarts=3, **fields)
  for document in itertools.chain(*map(manifests.unpack, documents)):
    if document['kind'] in ADD_ONS:
      # metadata is the same for all kinds, and not in the schema.
      make_validator(document['kind']).validate({**document, 'metadata': {}})
    else:
      for version in (OLDEST, kubernetes_validate.latest_version()):
        kubernetes_validate.validate(document, version, strict=True)


@each_kind
def test_the_file_of_a_problem_is_mounted_in_each_task(
  kubernetes_validate, kind
):
  given = ('--problem=examples/mine.py',)
  documents = make(kind=kind, given=given, problem=b'x = 1\n', tensorboard=True)
  [config_map] = find(documents, 'ConfigMap').values()
  assert config_map['data'] == {'mine.py': 'x = 1\n'}
  version = kubernetes_validate.latest_version()
  kubernetes_validate.validate(config_map, version, strict=True)
  rest = [d for d in documents if d is not config_map]
  for name, template in templates_of(rest).items():
    mounts = container_of(template)['volumeMounts']
    places = [m['mountPath'] for m in mounts if m['name'] == 'problem']
    volumes = [v for v in template['spec']['volumes'] if v['name'] == 'problem']
    if name.endswith('tensorboard'):
      assert not places and not volumes
    else:
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


def test_the_schema_of_a_tfjob_finds_what_is_wrong(make_validator):
  (document,) = find(make(kind='tfjob'), 'TFJob').values()
  broken = copy.deepcopy(document)
  container = container_of(broken['spec']['tfReplicaSpecs']['PS']['template'])
  container['arguments'] = container.pop('args')
  errors = list(make_validator('TFJob').iter_errors({**broken, 'metadata': {}}))
  assert ["'arguments' was unexpected" in str(e) for e in errors] == [True]


@each_kind
def test_only_the_tasks_of_a_run_reach_its_ports(kind):
  fields = {'kind': kind, 'tensorboard': True, 'namespace': 'ml'}
  documents = make(**fields)
  policies = find(documents, 'NetworkPolicy')
  # Nobody is allowed to reach the TensorBoard.
  tensorboard = policies.pop('mnist-tensorboard')['spec']
  assert tensorboard['policyTypes'] == ['Ingress']
  assert 'ingress' not in tensorboard
  (policy,) = policies.values()
  # It is there before the first task.
  assert documents[0] == policy
  spec = policy['spec']
  assert spec['policyTypes'] == ['Ingress']
  ((rule,),) = [spec['ingress']]
  assert rule['ports'] == [{'protocol': 'TCP', 'port': 2222}]
  # A peer without namespaceSelector is of this namespace.
  (peer,) = rule['from']
  assert peer == {'podSelector': spec['podSelector']}
  (selector,) = peer['podSelector'].values()
  for name, template in templates_of(documents).items():
    assert selects(selector, template) == (name != 'mnist-tensorboard')
  for template in templates_of(make(**fields, name='other')).values():
    assert not selects(selector, template)


def test_the_policy_speaks_of_egress_where_it_is_told_to():
  (policy,) = find(make(), 'NetworkPolicy').values()
  assert policy['spec']['policyTypes'] == ['Ingress']
  (policy,) = find(make(egress=('10.0.0.0/8',)), 'NetworkPolicy').values()
  assert policy['spec']['policyTypes'] == ['Ingress', 'Egress']
  tasks, names, network = policy['spec']['egress']
  assert tasks['ports'] == [{'protocol': 'TCP', 'port': 2222}]
  assert [port['port'] for port in names['ports']] == [53, 53]
  assert network == {'to': [{'ipBlock': {'cidr': '10.0.0.0/8'}}]}


@pytest.mark.parametrize('kind', ['job', 'tfjob', 'jobset'])
def test_an_evaluator_sees_the_logs_and_serves_nowhere(kind):
  documents = make(kind=kind, evaluator=True)
  if kind == 'tfjob':
    (job,) = find(documents, 'TFJob').values()
    assert job['spec']['tfReplicaSpecs']['Evaluator']['replicas'] == 1
  elif kind == 'jobset':
    (jobset,) = find(documents, 'JobSet').values()
    assert jobset['spec']['successPolicy']['targetReplicatedJobs'] == ['chief']
    *_, last = jobset['spec']['replicatedJobs']
    assert last['name'] == 'evaluator'
    rules = last['template']['spec']['podFailurePolicy']['rules']
    # However it ends, the JobSet goes on.
    assert {rule['action'] for rule in rules} == {'Ignore'}
  else:
    assert 'mnist-evaluator-0' not in find(documents, 'Service')
    assert 'mnist-evaluator-0' in find(documents, 'Job')
  found = [
    template
    for template in templates_of(documents).values()
    if template['metadata']['labels'].get('role') == 'evaluator'
  ]
  container = container_of(*found)
  assert 'ports' not in container or kind == 'tfjob'
  assert '/logs' in {m['mountPath'] for m in container['volumeMounts']}
  is_told = '--job_name=evaluator' in container['args']
  assert is_told == (kind == 'job')  # The operator tells it by TF_CONFIG.


each_shape_of_jobs = pytest.mark.parametrize(
  'shape', [{'num_ps': num_ps} for num_ps in (0, 1, 2)], ids=str
)


@each_shape_of_jobs
def test_the_hosts_of_the_flags_are_services_and_lead_to_their_tasks(shape):
  documents = make(**shape, tensorboard=True)
  services, jobs = find(documents, 'Service'), find(documents, 'Job')
  assert set(services) == {*jobs, 'mnist-tensorboard'}
  for name, job in jobs.items():
    flags = flags_of(job['spec']['template'])
    hosts = [flags.get('ps_hosts'), flags.get('worker_hosts')]
    addresses = ','.join(filter(None, hosts)).split(',')
    assert addresses == [f'{other}:2222' for other in jobs]
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


def test_one_worker_alone_serves_nowhere():
  documents = make(num_ps=0, num_workers=1)
  assert [d['kind'] for d in documents] == ['Job']
  container = container_of(templates_of(documents)['mnist-worker-0'])
  assert 'readinessProbe' not in container
  assert 'ports' not in container
  assert not any('hosts' in word for word in container['args'])
