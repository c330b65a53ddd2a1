"""The manifests of a run on Kubernetes: options in, plain dicts out.

Kind `job`: a Job and a Service for each task. Kind `jobset`: one JobSet of the
Jobs ps, chief, worker and evaluator, whose tasks learn their role from
TF_CONFIG; it is done when the chief is, fails as a whole, and is admitted as a
whole by Kueue. Kind `trainjob`: a TrainJob of Kubeflow Trainer v2 whose own
TrainingRuntime, without a framework, holds this JobSet.

Each object is made, and patched by --kube_patch, by itself; last, the Jobs are
put into their JobSet, and this into its TrainingRuntime.
"""

from __future__ import annotations

import base64
import dataclasses
import json
import math
import posixpath
import re
from typing import Any

from distmnist.common import cli
from distmnist.common.names import ATTEMPT, FIRST_PORT
from distmnist.launching import jobs
from distmnist.launching.kubernetes import patch
from distmnist.launching.kubernetes.kubectl import Object

PORT = FIRST_PORT
DATA_DIR = '/data'
LOGS_DIR = '/logs'
PROBLEM_DIR = '/problem'
# How long before Kubernetes would kill it a task leaves.
KILL_MARGIN_SECS = 5
# --kind -> the kind of the object that ends when the run does, and that Kueue
# admits; of `job` there is one for each task.
WORKLOADS = {'job': 'Job', 'jobset': 'JobSet', 'trainjob': 'TrainJob'}
_APIS = {
  'ConfigMap': 'v1',
  'Job': 'batch/v1',
  'JobSet': 'jobset.x-k8s.io/v1alpha2',
  'NetworkPolicy': 'networking.k8s.io/v1',
  'Service': 'v1',
  'TrainJob': 'trainer.kubeflow.org/v1alpha1',
  'TrainingRuntime': 'trainer.kubeflow.org/v1alpha1',
}
_QUEUE_LABEL = 'kueue.x-k8s.io/queue-name'
# On each Pod of a Job whose Pods are numbered.
_INDEX_LABEL = 'batch.kubernetes.io/job-completion-index'
_CONFIG_MAP_KEY = re.compile(r'[-._a-zA-Z0-9]+')


@dataclasses.dataclass(frozen=True)
class Options:
  """Options of the manifests beyond the jobs.Job.

  Attributes:
    kind: 'job', 'jobset' or 'trainjob'.
    name: of the run: all names begin with it, and it is the label `run`.
    namespace: None for that of kubectl's context.
    image: of all tasks.
    resources: 'ps' and 'worker' -> 'cpu' and 'memory' -> quantity, both the
      request and the limit of each task; an evaluator has those of a worker.
    gpus: NVIDIA GPUs of each worker.
    claims: path -> PersistentVolumeClaim that all but the ps mount there.
    stop_grace_secs: within which a task that is told to stop has left.
    train_flags: for every task.
    problem: the file of --problem, or None.
    queue: Kueue's, or None.
    patch: path of the file of --kube_patch, or None.
    launch: the label `launch` of what one launcher creates and watches; None
      for manifests that are printed, which are the same each time.
  """

  kind: str
  name: str
  namespace: str | None
  image: str
  resources: dict[str, dict[str, str]]
  gpus: int
  claims: dict[str, str]
  stop_grace_secs: float
  train_flags: tuple[str, ...]
  problem: bytes | None = None
  queue: str | None = None
  patch: str | None = None
  launch: str | None = None

  @property
  def labels(self) -> dict[str, str]:
    """The labels of all that belongs to the run."""
    launch = {'launch': self.launch} if self.launch else {}
    return {'app': 'distmnist', 'run': self.name, **launch}


def make(job: jobs.Job, options: Options) -> list[Object]:
  """Returns the manifests in the order of their creation.

  Raises:
    cli.UsageError: the patch does not fit them, or Kubernetes takes no file by
      the name of --problem's.
    cli.RunError: there is a patch, and no kubectl or no PyYAML.
  """
  documents = []
  if options.problem is not None:
    named = job.flag('problem') or ''
    documents.append(_make_config_map(named, options.problem, options))
  if job.num_ps + job.num_workers > 1:
    documents.append(_make_network_policy(options))
  if options.kind == 'job':
    documents += _make_task_jobs(job, options)
  else:
    documents += _make_role_jobs(job, options)
    documents.append(_make_jobset(options))
  if options.kind == 'trainjob':
    documents += _make_trainjob(options)
  if options.patch:
    documents = patch.apply(documents, options.patch)
  return documents if options.kind == 'job' else _nest(documents)


def check_name(job: jobs.Job, kind: str, name: str) -> None:
  """Refuses a run's name that is too long for the Pods of a JobSet.

  Raises:
    cli.UsageError: `name` is too long.
  """
  if kind == 'job':
    return
  last = max(job.num_ps, job.num_workers - 1, 1) - 1
  # JobSet-role-0-index-random: a Pod's name is also a host name.
  endings = [f'-worker-0-{last}-abcde']
  endings += ['-evaluator-0-0-abcde'] * job.evaluator
  most = 63 - max(map(len, endings))
  if len(name) > most:
    raise cli.UsageError(
      f'--kube_name={name} has {len(name)} characters: expected at most {most} '
      f'with --kind={kind}, which adds a role and a number'
    )


def _make_object(
  options: Options,
  kind: str,
  name: str,
  labels: dict[str, str],
  spec: Object,
  field: str = 'spec',
) -> Object:
  """Returns an object of the run."""
  metadata: dict[str, Any] = {'name': name}
  if options.namespace:
    metadata['namespace'] = options.namespace
  if options.queue and kind == WORKLOADS[options.kind]:
    labels = {**labels, _QUEUE_LABEL: options.queue}
  if labels:
    metadata['labels'] = labels
  return {
    'apiVersion': _APIS[kind],
    'kind': kind,
    'metadata': metadata,
    field: spec,
  }


def _make_config_map(named: str, content: bytes, options: Options) -> Object:
  """Returns the ConfigMap of the file of --problem.

  Raises:
    cli.UsageError: Kubernetes takes no file by its name.
  """
  file = posixpath.basename(named)
  if not _CONFIG_MAP_KEY.fullmatch(file):
    raise cli.UsageError(
      f'--problem={named}: Kubernetes takes only letters, digits, -, _ and . in'
      ' the name of a file: rename it'
    )
  try:
    field, text = 'data', content.decode()
  except UnicodeDecodeError:  # Python reads other encodings as well.
    field, text = 'binaryData', base64.b64encode(content).decode()
  name = f'{options.name}-problem'
  return _make_object(
    options, 'ConfigMap', name, options.labels, {file: text}, field
  )


def _make_network_policy(options: Options) -> Object:
  """Returns the NetworkPolicy that says who reaches the tasks' ports."""
  peers = {'podSelector': {'matchLabels': options.labels}}
  ports = [{'protocol': 'TCP', 'port': PORT}]
  spec = {
    **peers,
    'policyTypes': ['Ingress'],
    'ingress': [{'from': [peers], 'ports': ports}],
  }
  name, labels = options.name, options.labels
  return _make_object(options, 'NetworkPolicy', name, labels, spec)


def _make_task_jobs(job: jobs.Job, options: Options) -> list[Object]:
  """Returns a Job for each task, and before it its Service."""
  documents = []
  for task in _make_tasks(job, options):
    index = f'{task.job_name}-{task.task_index}'
    name = f'{options.name}-{index}'
    labels = {**options.labels, 'role': task.job_name, 'task': index}
    if task.port:
      service = {
        'selector': labels,
        'publishNotReadyAddresses': True,
        'ports': [{'name': 'grpc', 'port': task.port}],
      }
      documents.append(_make_object(options, 'Service', name, labels, service))
    template = _make_template(
      options, labels, task.job_name, task.argv, is_serving=bool(task.port)
    )
    spec = {
      'backoffLimit': job.max_restarts,
      'podFailurePolicy': _make_failure_policy(),
      'template': template,
    }
    documents.append(_make_object(options, 'Job', name, labels, spec))
  return documents


def _make_tasks(job: jobs.Job, options: Options) -> list[jobs.Task]:
  """Returns the tasks; the host of each is its Service."""
  counts = {'ps': job.num_ps, 'worker': job.num_workers}
  ps_hosts, worker_hosts = (
    [f'{options.name}-{job_name}-{i}:{PORT}' for i in range(count)]
    for job_name, count in counts.items()
  )

  def make_words(job_name: str) -> tuple[str, ...]:
    return *_make_resource_flags(options, job_name), *options.train_flags

  def make_members(job_name: str) -> list[jobs.Task]:
    words = make_words(job_name)
    return jobs.make_tasks(ps_hosts, worker_hosts, words, module=job.module)

  beside = dataclasses.replace(job, train_flags=make_words('evaluator'))
  return [
    *make_members('ps')[: job.num_ps],
    *make_members('worker')[job.num_ps :],
    *jobs.make_evaluator_tasks(beside),
  ]


def _make_role_jobs(job: jobs.Job, options: Options) -> list[Object]:
  """Returns the Jobs of a JobSet, which have a Pod for each task of a role."""
  counts = {
    'ps': job.num_ps,
    'chief': 1,
    'worker': job.num_workers - 1,
    'evaluator': int(job.evaluator),
  }
  counts = {role: count for role, count in counts.items() if count}
  is_cluster = sum(counts.values()) > 1
  documents = []
  for role, count in counts.items():
    job_name = 'worker' if role == 'chief' else role
    is_member = role != 'evaluator'
    words = *_make_resource_flags(options, job_name), *options.train_flags
    template = _make_template(
      options,
      {**options.labels, 'role': job_name},
      job_name,
      ('python', '-m', job.module, *words),
      is_serving=is_cluster and is_member,
      more_env=_make_role_env(options, role, counts) if is_cluster else [],
    )
    spec = {
      'completionMode': 'Indexed',
      'completions': count,
      'parallelism': count,
      'backoffLimitPerIndex': job.max_restarts,
      'maxFailedIndexes': 0,
      'podFailurePolicy': _make_failure_policy(is_needed=is_member),
      'template': template,
    }
    documents.append(_make_object(options, 'Job', role, {}, spec))
  return documents


def _make_role_env(
  options: Options, role: str, counts: dict[str, int]
) -> list[Object]:
  """Returns the variables that tell a Pod its role.

  A JobSet names the Pods JOBSET-ROLE-0-INDEX, and has a headless Service of the
  same name, which also lists Pods that are not ready.
  """
  name = options.name
  cluster = {
    each: [f'{name}-{each}-0-{index}.{name}:{PORT}' for index in range(count)]
    for each, count in counts.items()
  }
  field = {'fieldPath': f"metadata.labels['{_INDEX_LABEL}']"}
  # Kubernetes replaces $(TASK_INDEX), as that variable comes first.
  task = f'{{"type": "{role}", "index": $(TASK_INDEX)}}'
  config = f'{{"cluster": {json.dumps(cluster)}, "task": {task}}}'
  return [
    {'name': 'TASK_INDEX', 'valueFrom': {'fieldRef': field}},
    {'name': 'TF_CONFIG', 'value': config},
  ]


def _make_jobset(options: Options) -> Object:
  """Returns the JobSet, still without its Jobs."""
  spec = {
    'successPolicy': {'operator': 'All', 'targetReplicatedJobs': ['chief']},
    # Its Jobs restart tasks; once one has given up, all end.
    'failurePolicy': {'maxRestarts': 0},
  }
  return _make_object(options, 'JobSet', options.name, options.labels, spec)


def _make_trainjob(options: Options) -> list[Object]:
  """Returns the TrainingRuntime, still without its JobSet, and the TrainJob."""
  # Neither mlPolicy nor the label of an ancestor step: nothing of a framework
  # is added, and a TrainJob's own command cannot replace that of a role.
  name = options.name
  runtime = {'apiGroup': 'trainer.kubeflow.org', 'kind': 'TrainingRuntime'}
  specs = {
    'TrainingRuntime': {},
    'TrainJob': {'runtimeRef': {**runtime, 'name': name}},
  }
  return [
    _make_object(options, kind, name, options.labels, spec)
    for kind, spec in specs.items()
  ]


def _nest(documents: list[Object]) -> list[Object]:
  """Puts the Jobs into their JobSet, and this into its TrainingRuntime.

  Raises:
    cli.UsageError: --kube_patch has set what is then put there.
  """
  by_kind = {document['kind']: document for document in documents}
  parts = [
    {'name': d['metadata']['name'], 'replicas': 1, 'template': _strip(d)}
    for d in documents
    if d['kind'] == 'Job'
  ]
  jobset, runtime = by_kind['JobSet'], by_kind.get('TrainingRuntime')
  _put(jobset, 'replicatedJobs', parts, 'Job')
  inner = ['Job']
  if runtime:
    _put(runtime, 'template', _strip(jobset), 'JobSet')
    inner.append('JobSet')
  return [document for document in documents if document['kind'] not in inner]


def _put(document: Object, field: str, value: Any, kind: str) -> None:
  spec = document.setdefault('spec', {})
  if field in spec:
    raise cli.UsageError(
      f'--kube_patch sets spec.{field} of the {document["kind"]}, which is made'
      f' of each {kind} of the run: expected a patch of kind: {kind}'
    )
  spec[field] = value


def _strip(document: Object) -> Object:
  """Returns an object as a template in another, which names it."""
  own = {
    name: value
    for name, value in document['metadata'].items()
    if name not in ('name', 'namespace')
  }
  return {**({'metadata': own} if own else {}), 'spec': document['spec']}


def _make_failure_policy(is_needed: bool = True) -> Object:
  """Returns the podFailurePolicy of a Job.

  Args:
    is_needed: whether the run fails with its Pod. Otherwise the Pod restarts,
      at growing intervals, until the run ends.
  """
  # That a node is drained or preempted is not the task's fault.
  ignored = {
    'action': 'Ignore',
    'onPodConditions': [{'type': 'DisruptionTarget', 'status': 'True'}],
  }
  if is_needed:
    codes = {'operator': 'In', 'values': list(cli.FINAL_CODES)}
    rule = {'action': 'FailJob', 'onExitCodes': codes}
  else:
    codes = {'operator': 'NotIn', 'values': [0]}
    rule = {'action': 'Ignore', 'onExitCodes': codes}
  return {'rules': [ignored, rule]}


def _make_resource_flags(options: Options, job_name: str) -> list[str]:
  """Returns the flags of train for what a task may use."""
  # TensorFlow counts the cores of the node, not those of the Pod.
  cpu = _find_resources(options, job_name)['cpu']
  cores = float(cpu[:-1]) / 1000 if cpu.endswith('m') else float(cpu)
  threads = math.ceil(cores)
  found = [
    f'--intra_op_parallelism_threads={threads}',
    f'--inter_op_parallelism_threads={max(2, threads)}',
  ]
  if job_name == 'worker' and options.gpus:
    found.append(f'--num_gpus={options.gpus}')
  return found


def _find_resources(options: Options, job_name: str) -> dict[str, str]:
  return options.resources['ps' if job_name == 'ps' else 'worker']


def _make_template(
  options: Options,
  labels: dict[str, str],
  job_name: str,
  argv: tuple[str, ...],
  is_serving: bool,
  more_env: list[Object] | None = None,
) -> Object:
  """Returns the template of the Pod of a task, or of all tasks of a role.

  Args:
    job_name: 'ps', 'worker' or 'evaluator'.
    argv: 'python', '-m', the module and its flags.
    is_serving: whether other tasks reach it.
    more_env: variables that this kind of object needs.
  """
  # A Pod is not told whether it replaces another. As a second attempt it takes
  # a missing task for lost rather than for a mistake, and may find that the run
  # is over.
  env = {'HOME': '/tmp', ATTEMPT: '2'}
  requests: dict[str, Any] = dict(_find_resources(options, job_name))
  if requests['cpu'].isdecimal():
    requests['cpu'] = int(requests['cpu'])
  limits = dict(requests)
  if job_name == 'worker' and options.gpus:
    limits['nvidia.com/gpu'] = options.gpus
  else:
    # Some images give a container all GPUs of the node.
    env['CUDA_VISIBLE_DEVICES'] = ''
  # Kubernetes replaces $(NAME), and reads $$ as $.
  words = [word.replace('$', '$$') for word in argv]
  serving = {
    'ports': [{'name': 'grpc', 'containerPort': PORT}],
    'readinessProbe': {'tcpSocket': {'port': 'grpc'}, 'periodSeconds': 5},
  }
  volumes = _make_volumes(options, job_name)
  container = {
    'name': 'tensorflow',
    'image': options.image,
    'command': words[:3],
    'args': words[3:],
    'env': [
      *({'name': name, 'value': value} for name, value in env.items()),
      *(more_env or []),
    ],
    **(serving if is_serving else {}),
    'resources': {'requests': requests, 'limits': limits},
    'volumeMounts': [mount for mount, _ in volumes],
    # The rest of the Pod Security Standard "restricted", and more.
    'securityContext': {
      'allowPrivilegeEscalation': False,
      'readOnlyRootFilesystem': True,
      'capabilities': {'drop': ['ALL']},
    },
  }
  user = 1000  # As in the Dockerfile.
  spec = {
    'restartPolicy': 'Never',
    'terminationGracePeriodSeconds': math.ceil(options.stop_grace_secs)
    + KILL_MARGIN_SECS,
    # The kernel withholds SIGTERM from a process 1 without a handler, and while
    # importing Python has none. With this, process 1 is Kubernetes's own.
    'shareProcessNamespace': True,
    # Code that an attacker runs in a task finds no cluster credentials there.
    'automountServiceAccountToken': False,
    'securityContext': {
      'runAsNonRoot': True,
      'runAsUser': user,
      'runAsGroup': user,
      'fsGroup': user,
      'fsGroupChangePolicy': 'OnRootMismatch',
      'seccompProfile': {'type': 'RuntimeDefault'},
    },
    'containers': [container],
    'volumes': [volume for _, volume in volumes],
  }
  return {'metadata': {'labels': labels}, 'spec': spec}


def _make_volumes(
  options: Options, job_name: str
) -> list[tuple[Object, Object]]:
  """Returns each mount of a task's container with its volume."""
  # /tmp is on the node's disk: a Pod that writes more is evicted before it
  # harms its neighbours.
  found = [
    (
      {'name': 'tmp', 'mountPath': '/tmp'},
      {'name': 'tmp', 'emptyDir': {'sizeLimit': '2Gi'}},
    )
  ]
  # A ps neither reads nor writes a file.
  for path, claim in options.claims.items() if job_name != 'ps' else ():
    name = path.strip('/')
    volume = {'name': name, 'persistentVolumeClaim': {'claimName': claim}}
    found.append(({'name': name, 'mountPath': path}, volume))
  if options.problem is not None:
    mount = {'name': 'problem', 'mountPath': PROBLEM_DIR, 'readOnly': True}
    config_map = {'name': f'{options.name}-problem'}
    found.append((mount, {'name': 'problem', 'configMap': config_map}))
  return found
