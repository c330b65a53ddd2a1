"""The manifests: as written, against the schemas, and against each other.

A change that is meant renews the golden files:

  RENEW_GOLDEN=1 python -m pytest tests/launchers/kubernetes_test.py
"""

import copy
import os
import pathlib
import re
import shutil
import subprocess

import pytest
from absl.testing import flagsaver

from distmnist import cli, launch
from tests import in_process
from tests.runner import REPO, SMALL, read_report

yaml = pytest.importorskip('yaml')

GOLDEN = pathlib.Path(__file__).parent / 'golden'
SCHEMAS = REPO.parent / 'shared' / 'schemas'
# Until then the schema wants onPodConditions where they cannot be.
OLDEST = '1.29'
CLAIMS = '--kube_data_claim=mnist-data', '--kube_logs_claim=mnist-logs'
SHAPES = [
  f'--num_ps={num_ps} --kube_gpus={gpus}'
  for num_ps in (0, 1, 2)
  for gpus in (0, 2)
]
KINDS = ['--kind=job', '--kind=tfjob']


@pytest.fixture
def run(capsys, monkeypatch):
  """Returns run(words of launch, words of train) -> (code, stdout, stderr)."""
  # train_flags_test.py has these; the flags of train are made up here.
  for name in ('check', 'check_combination'):
    monkeypatch.setattr(launch.train_flags_lib, name, lambda *_: None)

  def run(flags='', train=()):
    words = '--launcher=kubernetes', '--kube_name=mnist', *flags.split()
    codes = []
    with flagsaver.flagsaver():
      argv = ['launch', *words, '--', *train]
      cli.run(launch.main, argv, passthrough=True, leave=codes.append)
    out, err = capsys.readouterr()
    return codes[0], out, err

  return run


@pytest.fixture
def render(run):
  """Returns render(words of launch, words of train) -> list of dicts."""

  def render(flags='', train=()):
    flags = ' '.join(['--kube_image=distmnist:1', *CLAIMS, flags])
    code, out, err = run(flags, train)
    assert (code, err) == (0, '')
    return list(yaml.safe_load_all(out))

  return render


@pytest.fixture
def fail(run):
  """Returns fail(words of launch, words of train) -> the error line."""

  def fail(flags, train=()):
    code, out, err = run(flags, train)
    assert (code, out) == (2, '')
    (line,) = err.splitlines()
    return line

  return fail


def find(documents, kind):
  return {d['metadata']['name']: d for d in documents if d['kind'] == kind}


def templates_of(documents):
  """Returns {name: template of its Pods}, TensorBoard's too."""
  found = {}
  for document in documents:
    name, spec = document['metadata']['name'], document['spec']
    if 'template' in spec:
      found[name] = spec['template']
    for replica, replicas in spec.get('tfReplicaSpecs', {}).items():
      found[f'{name}-{replica.lower()}'] = replicas['template']
  return found


def tasks_of(documents):
  found = templates_of(documents)
  return {n: t for n, t in found.items() if not n.endswith('-tensorboard')}


def container_of(template):
  (container,) = template['spec']['containers']
  return container


def flags_of(template):
  words = container_of(template)['args']
  return dict(word.removeprefix('--').split('=', 1) for word in words)


def selects(selector, template):
  labels = template['metadata']['labels']
  return selector.items() <= labels.items()


@pytest.mark.parametrize(
  ('file', 'flags', 'train'),
  [
    (
      'job.yaml',
      '--num_ps=1 --num_workers=2 --kube_image=registry.example.com/distmnist:1'
      ' --kube_namespace=ml --kube_gpus=1 --kube_data_claim=mnist-data'
      ' --kube_logs_claim=mnist-logs --kube_tensorboard --max_restarts=5',
      ['--model=cnn', '--strategy=sync_sgd', '--epochs=2', '--note=a b'],
    ),
    (
      'tfjob.yaml',
      '--kind=tfjob --num_ps=2 --num_workers=3 --kube_image=distmnist:1'
      ' --kube_logs_claim=mnist-logs --kube_cpu=500m --max_restarts=5',
      ['--model=cnn', '--logdir=/logs/mnist/first'],
    ),
  ],
)
def test_the_manifests_are_those_of_the_golden_file(run, file, flags, train):
  code, out, err = run(flags, train)
  assert (code, err) == (0, '')
  if os.environ.get('RENEW_GOLDEN'):
    (GOLDEN / file).write_text(out)
  assert out == (GOLDEN / file).read_text(), (
    f'{file} is another one now: read the difference, and if it is meant:'
    ' RENEW_GOLDEN=1 python -m pytest tests/launchers/kubernetes_test.py'
  )


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


@pytest.mark.parametrize('kind', KINDS)
@pytest.mark.parametrize('shape', SHAPES)
def test_the_manifests_fit_the_schemas(
  render, kubernetes_validate, request, kind, shape
):
  flags = f'{shape} {kind} --kube_tensorboard --kube_namespace=ml'
  for document in render(flags):
    if document['kind'] == 'TFJob':
      validator = request.getfixturevalue('tfjob_validator')
      # metadata is that of all kinds, and not in the schema.
      validator.validate({**document, 'metadata': {}})
    else:
      for version in (OLDEST, kubernetes_validate.latest_version()):
        kubernetes_validate.validate(document, version, strict=True)


def test_the_schema_of_a_tfjob_finds_what_is_wrong(render, tfjob_validator):
  (document,) = find(render('--kind=tfjob'), 'TFJob').values()
  broken = copy.deepcopy(document)
  container = container_of(broken['spec']['tfReplicaSpecs']['PS']['template'])
  container['arguments'] = container.pop('args')
  errors = list(tfjob_validator.iter_errors({**broken, 'metadata': {}}))
  assert ["'arguments' was unexpected" in str(e) for e in errors] == [True]


@pytest.mark.skipif(not shutil.which('kubectl'), reason='no kubectl')
@pytest.mark.parametrize('kind', KINDS)
def test_kubectl_reads_what_we_have_written(render, run, tmp_path, kind):
  words = ['--note=on', '--a=#b: c', '--b=$(HOME) $$', '--c=\u00fc\n', '--d=']
  (tmp_path / 'run.yaml').write_text(
    run(f'{kind} --kube_image=distmnist:1 {" ".join(CLAIMS)}', words)[1]
  )
  (tmp_path / 'kustomization.yaml').write_text('resources: [run.yaml]')
  done = subprocess.run(
    ['kubectl', 'kustomize', tmp_path],
    capture_output=True,
    text=True,
    timeout=60,
  )
  assert (done.returncode, done.stderr) == (0, '')

  def key(document):
    return document['kind'], document['metadata']['name']

  read = list(yaml.safe_load_all(done.stdout))
  assert sorted(read, key=key) == sorted(render(kind, words), key=key)


@pytest.mark.parametrize('shape', SHAPES)
def test_the_hosts_of_the_flags_are_services_and_lead_to_their_tasks(
  render, shape
):
  documents = render(f'{shape} --kube_tensorboard')
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


def test_the_ports_agree(render):
  documents = render('--kube_tensorboard')
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


@pytest.mark.parametrize('kind', KINDS)
@pytest.mark.parametrize('shape', SHAPES)
def test_only_the_tasks_of_a_run_reach_its_ports(render, kind, shape):
  flags = f'{shape} {kind} --kube_tensorboard --kube_namespace=ml'
  documents = render(flags)
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
  templates = templates_of(documents)
  for name, template in templates.items():
    assert selects(selector, template) == (name != 'mnist-tensorboard')
  other_run = render(f'{flags} --kube_name=other')
  for template in templates_of(other_run).values():
    assert not selects(selector, template)


@pytest.mark.parametrize('kind', KINDS)
def test_a_worker_has_the_gpus_and_a_ps_none(render, kind):
  for name, template in tasks_of(render(f'{kind} --kube_gpus=2')).items():
    container = container_of(template)
    env = {e['name']: e['value'] for e in container['env']}
    limits = container['resources']['limits']
    if '-ps' in name:
      assert 'nvidia.com/gpu' not in limits
      assert env['CUDA_VISIBLE_DEVICES'] == ''
      assert 'num_gpus' not in flags_of(template)
    else:
      assert limits['nvidia.com/gpu'] == 2
      assert 'CUDA_VISIBLE_DEVICES' not in env
      assert flags_of(template)['num_gpus'] == '2'


@pytest.mark.parametrize('kind', KINDS)
def test_without_gpus_they_are_hidden_from_all(render, kind):
  for template in tasks_of(render(kind)).values():
    container = container_of(template)
    assert {'name': 'CUDA_VISIBLE_DEVICES', 'value': ''} in container['env']
    assert 'nvidia.com/gpu' not in container['resources']['limits']
    assert 'num_gpus' not in flags_of(template)


@pytest.mark.parametrize(
  ('cpu', 'threads'), [('1', '1'), ('3', '3'), ('2500m', '3'), ('0.5', '1')]
)
def test_a_task_has_as_many_threads_as_cpus(render, cpu, threads):
  templates = tasks_of(render(f'--kube_cpu={cpu} --kube_ps_cpu=4'))
  for name, template in templates.items():
    flags = flags_of(template)
    wanted = '4' if '-ps' in name else threads
    assert flags['intra_op_parallelism_threads'] == wanted
    requests = container_of(template)['resources']['requests']
    assert str(requests['cpu']) == ('4' if '-ps' in name else cpu)


@pytest.mark.parametrize('kind', KINDS)
def test_the_volumes_are_where_the_flags_point(render, kind):
  for name, template in tasks_of(render(kind)).items():
    claims = {
      v['name']: v['persistentVolumeClaim']['claimName']
      for v in template['spec']['volumes']
      if 'persistentVolumeClaim' in v
    }
    mounts = {
      m['name']: m['mountPath'] for m in container_of(template)['volumeMounts']
    }
    if '-ps' in name:
      # It reads no file, and writes none.
      assert (claims, mounts) == ({}, {'tmp': '/tmp'})
    else:
      assert claims == {'data': 'mnist-data', 'logs': 'mnist-logs'}
      assert mounts == {'tmp': '/tmp', 'data': '/data', 'logs': '/logs'}
    flags = flags_of(template)
    assert (flags['data_dir'], flags['logdir']) == ('/data', '/logs/mnist')


def test_tensorboard_reads_the_logdir_and_writes_nothing(render):
  documents = render('--kube_tensorboard', ['--logdir=/logs/a'])
  container = container_of(templates_of(documents)['mnist-tensorboard'])
  assert '--logdir=/logs/a' in container['args']
  (mount,) = [m for m in container['volumeMounts'] if m['name'] == 'logs']
  assert mount == {'name': 'logs', 'mountPath': '/logs', 'readOnly': True}


def test_who_gives_a_flag_of_train_wins(render):
  train = ['--start_timeout_secs=5', '--num_gpus=1', '--logdir=/logs/a/b']
  train += ['--intra_op_parallelism_threads=9', '--data_dir=/data/mine']
  for template in tasks_of(render('--kube_gpus=2', train)).values():
    assert container_of(template)['args'][-5:] == train
    flags = flags_of(template)
    assert flags['start_timeout_secs'] == '5'
    assert flags['intra_op_parallelism_threads'] == '9'


@pytest.mark.parametrize('kind', KINDS)
@pytest.mark.parametrize(
  ('given', 'kill_secs'), [('2.5', 8), ('25', 30), ('120', 125)]
)
def test_kubernetes_kills_later_than_a_task_itself(
  render, kind, given, kill_secs
):
  documents = render(kind, [f'--stop_grace_secs={given}'])
  text = yaml.safe_dump(documents)
  assert set(re.findall(r'terminationGracePeriodSeconds: (.*)', text)) == {
    str(kill_secs)
  }
  assert '--stop_grace_secs=25\n' not in text or given == '25'


def test_a_pod_takes_the_others_for_late_and_not_for_wrong(render):
  # It may be one that replaces another; a Pod is not told which.
  assert yaml.safe_dump(render()).count('name: DISTMNIST_ATTEMPT') == 3


def test_the_flagfile_is_read_here_and_not_in_the_pod(render, tmp_path):
  (tmp_path / 'a.flags').write_text('# a\n--model=cnn\n--logdir=/logs/file\n')
  documents = render(train=[f'--flagfile={tmp_path}/a.flags', '--epochs=1'])
  for template in tasks_of(documents).values():
    args = container_of(template)['args']
    assert args[-3:] == ['--model=cnn', '--logdir=/logs/file', '--epochs=1']
    assert not any('flagfile' in word for word in args)


@pytest.mark.parametrize('kind', KINDS)
def test_what_kubernetes_would_replace_is_escaped(render, kind):
  for template in tasks_of(render(kind, ['--a=$(HOME)', '--b=$$'])).values():
    assert container_of(template)['args'][-2:] == ['--a=$$(HOME)', '--b=$$$$']


def test_a_job_is_restarted_unless_it_would_end_so_again(render):
  for job in find(render('--max_restarts=4'), 'Job').values():
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
def test_a_tfjob_is_restarted_if_asked_to(render, restarts, policy, limit):
  documents = render(f'--kind=tfjob --max_restarts={restarts}')
  spec = find(documents, 'TFJob')['mnist']['spec']
  replicas = spec['tfReplicaSpecs'].values()
  assert {r['restartPolicy'] for r in replicas} == {policy}
  assert spec['runPolicy'].get('backoffLimit') == limit
  assert spec['runPolicy']['cleanPodPolicy'] == 'Running'


@pytest.mark.parametrize(
  ('shape', 'replicas'),
  [
    ('--num_ps=2 --num_workers=3', {'PS': 2, 'Chief': 1, 'Worker': 2}),
    ('--num_ps=1 --num_workers=1', {'PS': 1, 'Chief': 1}),
    ('--num_ps=0 --num_workers=2', {'Chief': 1, 'Worker': 1}),
  ],
)
def test_a_tfjob_tells_the_tasks_who_they_are(render, shape, replicas):
  documents = render(f'--kind=tfjob {shape}')
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


@pytest.mark.parametrize('kind', KINDS)
def test_a_task_can_do_no_harm(render, kind):
  flags = f'{kind} --kube_tensorboard --kube_user=4242'
  for template in templates_of(render(flags)).values():
    spec = template['spec']
    assert spec['automountServiceAccountToken'] is False
    # What the Pod Security Standard "restricted" asks for, and more.
    security = spec['securityContext']
    assert security['runAsNonRoot'] is True
    assert {security[k] for k in ('runAsUser', 'runAsGroup', 'fsGroup')} == {
      4242
    }
    assert security['seccompProfile'] == {'type': 'RuntimeDefault'}
    assert container_of(template)['securityContext'] == {
      'allowPrivilegeEscalation': False,
      'readOnlyRootFilesystem': True,
      'capabilities': {'drop': ['ALL']},
    }


def test_nothing_of_our_environment_is_printed(run, monkeypatch):
  monkeypatch.setenv('WANDB_API_KEY', 'hush-hush')
  monkeypatch.setenv('DISTMNIST_TOKEN', 'hush-hush')
  code, out, err = run('--kube_image=distmnist:1')
  assert code == 0
  assert 'hush' not in out + err


def test_one_worker_alone_serves_nowhere(render):
  documents = render('--num_ps=0 --num_workers=1')
  assert [d['kind'] for d in documents] == ['Job']
  container = container_of(tasks_of(documents)['mnist-worker-0'])
  assert 'readinessProbe' not in container
  assert 'ports' not in container
  assert not any('hosts' in word for word in container['args'])


def test_without_a_volume_it_says_what_may_be_lost(run):
  code, out, err = run('--kube_image=distmnist:1')
  assert code == 0
  assert 'persistentVolumeClaim' not in out
  assert 'logdir' not in out
  assert err == (
    'distmnist.launch: without --kube_logs_claim no checkpoint is kept: what a'
    ' ps or the last worker takes with it is lost\n'
  )


def test_a_dry_run_is_the_same(run):
  flags = '--kube_image=distmnist:1'
  assert run(f'{flags} --dry_run') == run(flags)


IMAGE = '--kube_image=distmnist:1'
LOGS = f'{IMAGE} --kube_logs_claim=logs'


@pytest.mark.parametrize(
  ('flags', 'train', 'error'),
  [
    ('', '', '--kube_image is missing: .* docker build'),
    (f'{IMAGE} --kube_name=7up', '', 'kube_name=7up: .* a letter first'),
    (f'{IMAGE} --kube_name=My', '', 'kube_name=My: .* small letters'),
    (f'{IMAGE} --kube_name=a-', '', 'kube_name=a-: .* no dash last'),
    (f'{IMAGE} --kube_name={"a" * 52}', '', 'expected up to 51 small'),
    (f'{IMAGE} --kube_namespace=a.b', '', 'kube_namespace=a.b: expected'),
    (f'{IMAGE} --kube_data_claim=A', '', 'kube_data_claim=A'),
    (f'{IMAGE} --kube_logs_claim=a/b', '', 'kube_logs_claim=a/b'),
    (f'{IMAGE} --kube_cpu=0m', '', 'kube_cpu=0m.* above 0'),
    (f'{IMAGE} --kube_ps_cpu=two', '', 'kube_ps_cpu=two.* such as 2'),
    (f'{IMAGE} --kube_memory=4GB', '', 'kube_memory=4GB.* such as 4Gi'),
    (f'{IMAGE} --kube_user=0', '', 'kube_user=0'),
    (f'{IMAGE} --kind=pod', '', '--kind=pod: .*<job|tfjob>'),
    (f'{IMAGE} --logs_dir=/tmp/x', '', '--logs_dir=/tmp/x: .* kubectl logs'),
    (f'{IMAGE} --kube_tensorboard', '', 'give --kube_logs_claim too'),
    (IMAGE, '--logdir=/logs/a', 'name a volume with --kube_logs_claim'),
    (LOGS, '--logdir=/tmp/a', 'at /logs: give --logdir=/logs/a, or leave'),
    (LOGS, '--logdir=logs/a', '--logdir=logs/a is not on the volume logs'),
    (LOGS, '--logdir=/logs/../a', 'is not on the volume logs'),
    (LOGS, '--logdir=/logs2', 'is not on the volume logs'),
    (
      f'{IMAGE} --kube_data_claim=data',
      '--data_dir=/mnt/mnist',
      'not on the volume data, which is at /data: give --data_dir=/data/mnist',
    ),
    (LOGS, '--resume=never', '--resume=never: a Pod that replaces a lost one'),
    (IMAGE, '--num_gpus=1', '--num_gpus=1, but a worker has --kube_gpus=0'),
    (IMAGE, '--task_index=1', "--task_index is the launcher's to set"),
  ],
)
def test_a_mistake_is_told_before_anything_is_printed(
  fail, flags, train, error
):
  assert re.search(error, fail(flags, train.split()))


@pytest.mark.slow
def test_the_commands_of_the_manifests_train(render, tasks, tmp_path):
  """What the Pods would run, here: names and folders are those of this host."""
  train = [*SMALL, '--train_steps=40']
  jobs = tasks_of(render('--num_ps=2 --kube_cpu=1', train))
  ports = in_process.pick_ports(len(jobs))
  here = {
    f'{name}:2222': f'127.0.0.1:{port}'
    for name, port in zip(jobs, ports, strict=True)
  }
  here |= {'/logs': str(tmp_path), '/data': f'{tmp_path}/data'}
  started = []
  for name, template in jobs.items():
    container = container_of(template)
    assert container['command'] == ['python', '-m', 'distmnist.train']
    words = container['args']
    for there, value in here.items():
      words = [word.replace(there, value) for word in words]
    env = {e['name']: e['value'] for e in container['env']}
    env['HOME'] = str(tmp_path)
    started.append(tasks.start(tmp_path / f'{name}.log', *words, **env))
  assert tasks.wait(*started) == [0] * 4, [task.output for task in started]
  assert read_report(tmp_path / 'mnist')['workers_not_heard_of'] == []
