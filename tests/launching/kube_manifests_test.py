"""The manifests against the schemas, and against each other."""

import copy

import pytest

from tests.support import manifests
from tests.support.manifests import container_of, find, flags_of, templates_of
from tests.support.runner import REPO

yaml = pytest.importorskip('yaml')

SCHEMAS = REPO.parent / 'shared' / 'schemas'
# Before it the schema wants onPodConditions where they cannot be.
OLDEST = '1.29'
SHAPES = [
  {'num_ps': num_ps, 'gpus': gpus} for num_ps in (0, 1, 2) for gpus in (0, 2)
]
IDS = [str(shape) for shape in SHAPES]
each_kind = pytest.mark.parametrize('kind', manifests.KINDS)
each_shape = pytest.mark.parametrize('shape', SHAPES, ids=IDS)


def make(**fields):
  """Returns manifests.make as kubectl reads it: without a tuple."""
  return yaml.safe_load(yaml.safe_dump(manifests.make(**fields)))


def selects(selector, template):
  return selector.items() <= template['metadata']['labels'].items()


@pytest.fixture(scope='module')
def kubernetes_validate():
  return pytest.importorskip('kubernetes_validate')


@pytest.fixture(scope='module')
def tfjob_validator():
  jsonschema = pytest.importorskip('jsonschema')
  path = SCHEMAS / 'kubeflow.org_tfjobs.yaml'
  if not path.exists():
    pytest.skip(f'no schema of a TFJob: {path}')
  loader = getattr(yaml, 'CSafeLoader', yaml.SafeLoader)
  (version,) = yaml.load(path.read_text(), loader)['spec']['versions']
  schema = version['schema']['openAPIV3Schema']
  forbid_unknown(schema)
  return jsonschema.Draft202012Validator(schema)


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


@each_kind
@each_shape
def test_the_manifests_fit_the_schemas(
  kubernetes_validate, request, kind, shape
):
  fields = {**shape, 'tensorboard': True, 'namespace': 'ml'}
  for document in make(kind=kind, **fields):
    if document['kind'] == 'TFJob':
      validator = request.getfixturevalue('tfjob_validator')
      # metadata is that of all kinds, and not in the schema.
      validator.validate({**document, 'metadata': {}})
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


def test_the_schema_of_a_tfjob_finds_what_is_wrong(tfjob_validator):
  (document,) = find(make(kind='tfjob'), 'TFJob').values()
  broken = copy.deepcopy(document)
  container = container_of(broken['spec']['tfReplicaSpecs']['PS']['template'])
  container['arguments'] = container.pop('args')
  errors = list(tfjob_validator.iter_errors({**broken, 'metadata': {}}))
  assert ["'arguments' was unexpected" in str(e) for e in errors] == [True]


@each_shape
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


def test_the_ports_agree():
  documents = make(tensorboard=True)
  templates = templates_of(documents)
  for name, service in find(documents, 'Service').items():
    (port,) = service['spec']['ports']
    container = container_of(templates[name])
    (container_port,) = container['ports']
    assert container_port['containerPort'] == port['port']
    # By its name; a Service without targetPort leads to the same number.
    probe = container['readinessProbe']['tcpSocket']['port']
    assert probe == container_port['name']
    # The tasks find each other before they are ready.
    is_task = name != 'mnist-tensorboard'
    assert service['spec'].get('publishNotReadyAddresses', False) == is_task
    assert port['port'] == (2222 if is_task else 6006)


@each_kind
@each_shape
def test_only_the_tasks_of_a_run_reach_its_ports(kind, shape):
  fields = {**shape, 'kind': kind, 'tensorboard': True, 'namespace': 'ml'}
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


def test_a_job_is_restarted_unless_it_would_end_so_again():
  for job in find(make(max_restarts=4), 'Job').values():
    spec = job['spec']
    assert spec['backoffLimit'] == 4
    assert spec['template']['spec']['restartPolicy'] == 'Never'
    assert spec['podFailurePolicy']['rules'] == [
      {
        'action': 'Ignore',
        'onPodConditions': [{'type': 'DisruptionTarget', 'status': 'True'}],
      },
      {
        'action': 'FailJob',
        'onExitCodes': {'operator': 'In', 'values': [1, 2]},
      },
    ]


@pytest.mark.parametrize(
  ('restarts', 'policy', 'limit'), [(0, 'Never', None), (3, 'OnFailure', 4)]
)
def test_a_tfjob_is_restarted_if_asked_to(restarts, policy, limit):
  documents = make(kind='tfjob', max_restarts=restarts)
  spec = find(documents, 'TFJob')['mnist']['spec']
  replicas = spec['tfReplicaSpecs'].values()
  assert {r['restartPolicy'] for r in replicas} == {policy}
  assert spec['runPolicy'].get('backoffLimit') == limit
  assert spec['runPolicy']['cleanPodPolicy'] == 'Running'


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


def test_one_worker_alone_serves_nowhere():
  documents = make(num_ps=0, num_workers=1)
  assert [d['kind'] for d in documents] == ['Job']
  container = container_of(templates_of(documents)['mnist-worker-0'])
  assert 'readinessProbe' not in container
  assert 'ports' not in container
  assert not any('hosts' in word for word in container['args'])
