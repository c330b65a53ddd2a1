"""Prints the run as Kubernetes manifests; `| kubectl apply -f -` acts.

--kind=job: a Service and a Job a task. The Service has an IP of its own, which
stays when the Pod behind it is replaced, and lets through to Pods that are not
ready: tasks wait for each other before any of them is. --kind=tfjob: a TFJob of
Kubeflow, whose operator tells each task by TF_CONFIG who it is.

The manifests are dicts, written by manifests.py: whatever a flag holds stays
the string that it is, and the launcher needs no package.
"""

import dataclasses
import math
import posixpath
import re

from absl import flags

from distmnist import cli, manifests, processes, stop_grace
from distmnist import tasks as tasks_lib

PORT = tasks_lib.FIRST_PORT
TENSORBOARD_PORT = 6006
DATA_DIR = '/data'
LOGS_DIR = '/logs'
# Until a task gives the others up: nodes may have to come and to pull the
# image, and Kubernetes waits up to 360 s before it replaces a Pod once more.
_START_TIMEOUT_SECS = 600
# From SIGTERM to SIGKILL, and how much earlier a task is to have left. Nodes
# that are reclaimed often have no more than the 30 s.
_KILL_SECS = 30
_KILL_MARGIN_SECS = 5
# Exit codes that a restart would not change.
_FINAL = (cli.FAILED, cli.WRONG_COMMAND_LINE)
# /tmp is on the node's disk: who writes more is ended, and no neighbour is.
_TMP = {'name': 'tmp', 'emptyDir': {'sizeLimit': '2Gi'}}
_HARMLESS = {
  'allowPrivilegeEscalation': False,
  'readOnlyRootFilesystem': True,
  'capabilities': {'drop': ('ALL',)},
}

_KIND = flags.DEFINE_enum(
  'kind', 'job', ['job', 'tfjob'], 'kubernetes: Jobs, or a TFJob of Kubeflow.'
)
_NAME = flags.DEFINE_string(
  'kube_name', 'distmnist', "The run's name, with which all names begin."
)
_NAMESPACE = flags.DEFINE_string(
  'kube_namespace', None, "Default: that of kubectl's context."
)
_IMAGE = flags.DEFINE_string(
  'kube_image', None, 'The image of the tasks, see Dockerfile.'
)
_GPUS = flags.DEFINE_integer(
  'kube_gpus', 0, 'NVIDIA GPUs of each worker.', lower_bound=0
)
_CPU = flags.DEFINE_string(
  'kube_cpu', '2', 'CPUs of each worker, requested and its limit.'
)
_MEMORY = flags.DEFINE_string(
  'kube_memory', '4Gi', 'Memory of each worker, requested and its limit.'
)
_PS_CPU = flags.DEFINE_string('kube_ps_cpu', '1', 'The same of each ps.')
_PS_MEMORY = flags.DEFINE_string(
  'kube_ps_memory', '1Gi', 'The same of each ps.'
)
_DATA_CLAIM = flags.DEFINE_string(
  'kube_data_claim',
  None,
  f'PersistentVolumeClaim that the workers have at {DATA_DIR}, for the data'
  ' set. Without it each worker downloads its own.',
)
_LOGS_CLAIM = flags.DEFINE_string(
  'kube_logs_claim',
  None,
  f'PersistentVolumeClaim (ReadWriteMany) that the workers have at {LOGS_DIR},'
  f" for --logdir; by default that is {LOGS_DIR}/ and the run's name.",
)
_USER = flags.DEFINE_integer(
  'kube_user',
  1000,
  'Number of the user, and of the group, that the tasks run as; never root.',
  lower_bound=1,
)
_TENSORBOARD = flags.DEFINE_bool(
  'kube_tensorboard', False, 'A TensorBoard on the --logdir too.'
)


# What Kubernetes adds to the name is at most '-tensorboard', or '-worker-9999'.
_NAME_LENGTH = 63 - len('-tensorboard')
_LABEL = re.compile(r'[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?')
_DNS_NAME = re.compile(r'[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?')


@flags.validator(
  'kube_name',
  f'expected up to {_NAME_LENGTH} small letters, digits and dashes (DNS-1123),'
  ' a letter first and no dash last',
)
def _is_name(value):
  # That of a Service begins with a letter.
  is_label = _LABEL.fullmatch(value) and value[0].isalpha()
  return bool(is_label) and len(value) <= _NAME_LENGTH


@flags.validator(
  'kube_namespace', 'expected small letters, digits and dashes (DNS-1123)'
)
def _is_namespace(value):
  return value is None or bool(_LABEL.fullmatch(value))


@flags.multi_flags_validator(
  ['kube_data_claim', 'kube_logs_claim'],
  'expected names of small letters, digits and dashes (DNS-1123)',
)
def _are_claims(values):
  return all(v is None or _DNS_NAME.fullmatch(v) for v in values.values())


@flags.multi_flags_validator(
  ['kube_cpu', 'kube_ps_cpu'], 'expected CPUs above 0, such as 2, 0.5 or 500m'
)
def _are_cpus(values):
  pattern = re.compile(r'[0-9]+m?|[0-9]*\.[0-9]{1,3}')
  return all(
    pattern.fullmatch(v) and float(v.rstrip('m')) > 0 for v in values.values()
  )


@flags.multi_flags_validator(
  ['kube_memory', 'kube_ps_memory'], 'expected memory such as 4Gi or 512Mi'
)
def _are_bytes(values):
  pattern = re.compile(r'[1-9][0-9]*(k|M|G|T|Ki|Mi|Gi|Ti)?')
  return all(map(pattern.fullmatch, values.values()))


@dataclasses.dataclass(frozen=True)
class Run:
  """What the flags of this launcher say, and where the run's files are.

  Attributes:
    name: str, begins every name and is the value of the label `run`.
    namespace: str or None.
    image: str.
    gpus: int, of each worker.
    cpu, memory: dicts of 'ps' and 'worker' -> quantity (str).
    data_claim, logs_claim: str, names of PersistentVolumeClaims, or None.
    user: int, user and group of the tasks.
    logdir: str or None.
    tensorboard: bool.
    stop_grace_secs: float, what a task takes at most to save and leave.
  """

  name: str
  namespace: str | None
  image: str
  gpus: int
  cpu: dict
  memory: dict
  data_claim: str | None
  logs_claim: str | None
  user: int
  logdir: str | None
  tensorboard: bool
  stop_grace_secs: float

  @property
  def labels(self):
    """Of every object of the run."""
    return {'app': 'distmnist', 'run': self.name}

  def make(self, api, kind, name, spec, **labels):
    """Returns an object of Kubernetes as a dict."""
    namespace = {'namespace': self.namespace} if self.namespace else {}
    return {
      'apiVersion': api,
      'kind': kind,
      'metadata': {
        'name': name,
        **namespace,
        'labels': {**self.labels, **labels},
      },
      'spec': spec,
    }


def launch(job):
  """Prints the manifests of the tasks.Job, --dry_run or not; returns 0."""
  run, train_flags = from_flags(job)
  make = make_tfjob if _KIND.value == 'tfjob' else make_jobs
  documents = make(job, run, train_flags)
  if run.tensorboard:
    documents += make_tensorboard(run)
  if job.num_ps + job.num_workers > 1:
    documents = [make_network_policy(run), *documents]
  if not run.logdir:
    processes.say(
      'without --kube_logs_claim no checkpoint is kept: what a ps or the last'
      ' worker takes with it is lost'
    )
  comment = describe(job, run, _KIND.value)
  documents[0] = (f'{comment}\n\n{documents[0][0]}'.strip(), documents[0][1])
  print(manifests.dump(documents), end='')
  return 0


def from_flags(job):
  """Returns (Run, flags of train, list of str) of the flags and the tasks.Job.

  The flags are those given, with the --flagfile read: the image need not have
  it. What is chosen here comes before them, and of two equal flags the later
  wins.

  Raises:
    cli.UsageError: something is missing, or would be lost with a Pod.
  """
  if not _IMAGE.value:
    raise cli.UsageError(
      '--kube_image is missing: give the name of an image that the nodes can'
      ' pull, built by: docker build -t NAME .'
    )
  if job.logs_dir:
    raise cli.UsageError(
      f'--logs_dir={job.logs_dir}: Kubernetes itself keeps a log a task; leave'
      ' it out, and see kubectl logs'
    )
  resume = job.flag('resume')
  if resume not in (None, 'auto'):
    raise cli.UsageError(
      f'--resume={resume}: a Pod that replaces a lost one has the same command,'
      ' and would begin again; leave it out, and give a new run a --logdir of'
      ' its own'
    )
  logdir = job.flag('logdir')
  if not logdir and _LOGS_CLAIM.value:
    logdir = posixpath.join(LOGS_DIR, _NAME.value)
  if logdir:
    check_folder('logdir', logdir, LOGS_DIR, _LOGS_CLAIM.value)
  elif _TENSORBOARD.value:
    raise cli.UsageError(
      '--kube_tensorboard has nothing to show: give --kube_logs_claim too'
    )
  data_dir = job.flag('data_dir')
  if _DATA_CLAIM.value:
    data_dir = data_dir or DATA_DIR
    check_folder('data_dir', data_dir, DATA_DIR, _DATA_CLAIM.value)
  num_gpus = job.flag('num_gpus') or '0'
  if num_gpus.isdecimal() and int(num_gpus) > _GPUS.value:
    raise cli.UsageError(
      f'--num_gpus={num_gpus}, but a worker has --kube_gpus={_GPUS.value}:'
      ' leave --num_gpus out, and say by --kube_gpus how many each worker gets'
    )
  grace_secs, told = stop_grace.choose(job, _KILL_SECS, _KILL_MARGIN_SECS)
  run = Run(
    _NAME.value,
    _NAMESPACE.value,
    _IMAGE.value,
    _GPUS.value,
    {'ps': _PS_CPU.value, 'worker': _CPU.value},
    {'ps': _PS_MEMORY.value, 'worker': _MEMORY.value},
    _DATA_CLAIM.value,
    _LOGS_CLAIM.value,
    _USER.value,
    logdir,
    _TENSORBOARD.value,
    grace_secs,
  )
  chosen = {
    'start_timeout_secs': _START_TIMEOUT_SECS,
    'logdir': logdir,
    'data_dir': data_dir,
  }
  return run, [
    *(
      f'--{name}={value}'
      for name, value in chosen.items()
      if value is not None and job.flag(name) is None
    ),
    *told,
    *job.given,
  ]


def check_folder(name, folder, mount, claim):
  """Refuses a folder that would be gone with its Pod, or not be the others'.

  Args:
    name: str, train's flag.
    folder: str, its value.
    mount: str, where the volume is.
    claim: str or None, the PersistentVolumeClaim of the volume.

  Raises:
    cli.UsageError: it is not in the volume.
  """
  kind = 'logs' if mount == LOGS_DIR else 'data'
  if not claim:
    raise cli.UsageError(
      f'--{name}={folder} would be a folder of each Pod alone, and gone with'
      f' it: name a volume with --kube_{kind}_claim, it is at {mount}'
    )
  path = posixpath.normpath(folder)
  if not f'{path}/'.startswith(f'{mount}/'):
    raise cli.UsageError(
      f'--{name}={folder} is not on the volume {claim}, which is at {mount}:'
      f' give --{name}={mount}/{posixpath.basename(path)}, or leave it out'
    )


def describe(job, run, kind):
  """Returns the comment above all: what it is, and what to do with it."""
  namespace = f' -n {run.namespace}' if run.namespace else ''
  chief = 'job/{}-worker-0' if kind == 'job' else '{}-chief-0'
  workers = 'worker' if job.num_workers == 1 else 'workers'
  lines = [
    f'{run.name}: {job.num_ps} ps and {job.num_workers} {workers}, by'
    ' distmnist.launch --launcher=kubernetes',
    '',
    'start   kubectl apply -f FILE',
    f'watch   kubectl{namespace} logs -f {chief.format(run.name)}',
    f'tasks   kubectl{namespace} get pods -l run={run.name}',
    'end     kubectl delete -f FILE',
  ]
  if run.tensorboard:
    lines.append(
      f'curves  kubectl{namespace} port-forward service/{run.name}-tensorboard'
      f' {TENSORBOARD_PORT}'
    )
  return '\n'.join(lines)


def make_network_policy(run):
  """Returns (comment, dict): who may reach the ports of the tasks."""
  peers = {'matchLabels': run.labels}
  return (
    'TensorFlow asks nobody for a password and encrypts nothing: whoever'
    ' reaches\nthe port of a task runs there what he likes. Only the tasks of'
    ' this run may.',
    run.make(
      'networking.k8s.io/v1',
      'NetworkPolicy',
      run.name,
      {
        'podSelector': peers,
        'policyTypes': ('Ingress',),
        'ingress': [
          {
            'from': [{'podSelector': peers}],
            'ports': [{'protocol': 'TCP', 'port': PORT}],
          }
        ],
      },
    ),
  )


def make_jobs(job, run, train_flags):
  """Returns the list of (comment, dict) of a Service and a Job a task."""
  documents = []
  for task in make_tasks(job, run, train_flags):
    label = f'{task.job_name}-{task.task_index}'
    name = f'{run.name}-{label}'
    comment = f'---- {task.name} ----'
    if task.name == tasks_lib.CHIEF:
      comment = f'---- {task.name}, the chief ----'
    if task.port:
      service = {
        'selector': {**run.labels, 'task': label},
        'publishNotReadyAddresses': True,
        'ports': [{'name': 'grpc', 'port': task.port}],
      }
      documents.append(
        (comment, run.make('v1', 'Service', name, service, task=label))
      )
      comment = ''
    serving = {}
    if task.port:
      serving = {
        'ports': [{'name': 'grpc', 'containerPort': task.port}],
        'readinessProbe': {'tcpSocket': {'port': 'grpc'}, 'periodSeconds': 5},
      }
    container = make_container(run, task.job_name, task.argv, serving)
    spec = {
      'backoffLimit': job.max_restarts,
      'podFailurePolicy': {
        'rules': [
          # A node that is drained or preempted is no failure of the task's.
          {
            'action': 'Ignore',
            'onPodConditions': [{'type': 'DisruptionTarget', 'status': 'True'}],
          },
          {
            'action': 'FailJob',
            'onExitCodes': {'operator': 'In', 'values': _FINAL},
          },
        ]
      },
      'template': {
        'metadata': {'labels': {**run.labels, 'task': label}},
        'spec': {
          'restartPolicy': 'Never',
          **make_pod_spec(run, task.job_name, container),
        },
      },
    }
    documents.append(
      (comment, run.make('batch/v1', 'Job', name, spec, task=label))
    )
  return documents


def make_tasks(job, run, train_flags):
  """Returns the list of tasks.Task; the host of each is its Service."""
  ps_hosts, worker_hosts = (
    [f'{run.name}-{job_name}-{i}:{PORT}' for i in range(count)]
    for job_name, count in (('ps', job.num_ps), ('worker', job.num_workers))
  )

  def make(job_name):
    words = [*make_own_flags(run, job_name), *train_flags]
    return tasks_lib.make_tasks(
      ps_hosts, worker_hosts, words, module=job.module
    )

  return make('ps')[: job.num_ps] + make('worker')[job.num_ps :]


def make_own_flags(run, job_name):
  """Returns the flags (list of str) for what a ps or a worker may use."""
  # TensorFlow counts the cores of the node, not those that the Pod has.
  cpu = run.cpu[job_name]
  cores = float(cpu[:-1]) / 1000 if cpu.endswith('m') else float(cpu)
  threads = math.ceil(cores)
  own_flags = [
    f'--intra_op_parallelism_threads={threads}',
    f'--inter_op_parallelism_threads={max(2, threads)}',
  ]
  if job_name == 'worker' and run.gpus:
    own_flags.append(f'--num_gpus={run.gpus}')
  return own_flags


def make_tfjob(job, run, train_flags):
  """Returns the list of (comment, dict) of a TFJob."""
  # OnFailure and not ExitCode: that takes our 3 (another task was lost) for
  # final, and counts no restarts. The price: 1 and 2 are tried again.
  policy = 'OnFailure' if job.max_restarts else 'Never'

  def make_replicas(job_name, count):
    words = [*make_own_flags(run, job_name), *train_flags]
    argv = ('python', '-m', job.module, *words)
    # No readiness probe: the operator's Services have no address for a Pod
    # that is not ready, and the tasks wait for each other's.
    serving = {'ports': [{'name': 'tfjob-port', 'containerPort': PORT}]}
    container = make_container(run, job_name, argv, serving)
    return {
      'replicas': count,
      'restartPolicy': policy,
      'template': {
        'metadata': {'labels': run.labels},
        'spec': make_pod_spec(run, job_name, container),
      },
    }

  replicas = {
    'PS': ('ps', job.num_ps),
    'Chief': ('worker', 1),
    'Worker': ('worker', job.num_workers - 1),
  }
  run_policy = {'cleanPodPolicy': 'Running'}
  if job.max_restarts:
    # The operator gives up when so many are reached, over all tasks.
    run_policy['backoffLimit'] = job.max_restarts + 1
  spec = {
    'runPolicy': run_policy,
    'tfReplicaSpecs': {
      kind: make_replicas(job_name, count)
      for kind, (job_name, count) in replicas.items()
      if count
    },
  }
  return [('', run.make('kubeflow.org/v1', 'TFJob', run.name, spec))]


def make_container(run, job_name, argv, serving):
  """Returns the container (dict) of a task.

  Args:
    run: Run.
    job_name: 'ps' or 'worker'.
    argv: tuple of str, 'python', '-m', module and its flags.
    serving: dict, the part of the container that is about its port.
  """
  env = [
    {'name': 'HOME', 'value': '/tmp'},
    # A Pod does not know how many were before it: a task that is not there yet
    # may come, and a run that has ended may have had this one.
    {'name': tasks_lib.ATTEMPT, 'value': '2'},
  ]
  if job_name == 'ps' or not run.gpus:
    # Some images give a container all GPUs of the node.
    env.append({'name': 'CUDA_VISIBLE_DEVICES', 'value': ''})
  cpu = run.cpu[job_name]
  requests = {
    'cpu': int(cpu) if cpu.isdecimal() else cpu,
    'memory': run.memory[job_name],
  }
  gpus = {}
  if job_name == 'worker' and run.gpus:
    gpus = {'nvidia.com/gpu': run.gpus}
  return {
    # Kubeflow looks for this name.
    'name': 'tensorflow',
    'image': run.image,
    **make_command(argv),
    'env': env,
    **serving,
    'resources': {'requests': requests, 'limits': {**requests, **gpus}},
    'volumeMounts': [
      {'name': 'tmp', 'mountPath': '/tmp'},
      *(
        {'name': name, 'mountPath': path}
        for name, path, _ in list_volumes(run, job_name)
      ),
    ],
    'securityContext': _HARMLESS,
  }


def make_command(argv):
  # Kubernetes replaces $(NAME), and reads $$ as $.
  words = [word.replace('$', '$$') for word in argv]
  return {'command': tuple(words[:3]), 'args': words[3:]}


def list_volumes(run, job_name):
  """Returns the list of (name, path, claim); a ps needs no file."""
  volumes = [
    ('data', DATA_DIR, run.data_claim),
    ('logs', LOGS_DIR, run.logs_claim),
  ]
  return [v for v in volumes if v[2] and job_name == 'worker']


def make_pod_spec(run, job_name, container):
  """Returns what the Pods of all tasks have in common (dict)."""
  return {
    'terminationGracePeriodSeconds': math.ceil(run.stop_grace_secs)
    + _KILL_MARGIN_SECS,
    # The kernel keeps SIGTERM from a process 1 without a handler, as Python is
    # while it imports; with this Kubernetes' own program is process 1.
    'shareProcessNamespace': True,
    **make_security(run),
    'containers': [container],
    'volumes': [
      _TMP,
      *(
        {'name': name, 'persistentVolumeClaim': {'claimName': claim}}
        for name, _, claim in list_volumes(run, job_name)
      ),
    ],
  }


def make_security(run):
  """Returns the part of a Pod's spec (dict) that keeps it harmless."""
  return {
    # Whoever gets into a task shall find no key to the cluster there.
    'automountServiceAccountToken': False,
    'securityContext': {
      'runAsNonRoot': True,
      'runAsUser': run.user,
      'runAsGroup': run.user,
      'fsGroup': run.user,
      'fsGroupChangePolicy': 'OnRootMismatch',
      'seccompProfile': {'type': 'RuntimeDefault'},
    },
  }


def make_tensorboard(run):
  """Returns the list of (comment, dict) of a TensorBoard on the logdir."""
  name = f'{run.name}-tensorboard'
  # Not those of the tasks, whose port it shall not reach.
  labels = {'app': 'tensorboard', 'run': run.name}
  volumes = [_TMP]
  mounts = [{'name': 'tmp', 'mountPath': '/tmp'}]
  if run.logs_claim:
    claim = {'claimName': run.logs_claim}
    volumes.append({'name': 'logs', 'persistentVolumeClaim': claim})
    mounts.append({'name': 'logs', 'mountPath': LOGS_DIR, 'readOnly': True})
  argv = ['python', '-m', 'tensorboard.main', f'--logdir={run.logdir}']
  argv += [f'--port={TENSORBOARD_PORT}', '--bind_all']
  container = {
    'name': 'tensorboard',
    'image': run.image,
    **make_command(argv),
    'env': [{'name': 'HOME', 'value': '/tmp'}],
    'ports': [{'name': 'http', 'containerPort': TENSORBOARD_PORT}],
    'readinessProbe': {'tcpSocket': {'port': 'http'}},
    'resources': {
      'requests': {'cpu': '100m', 'memory': '512Mi'},
      'limits': {'cpu': 1, 'memory': '2Gi'},
    },
    'volumeMounts': mounts,
    'securityContext': _HARMLESS,
  }
  service = {
    'selector': labels,
    'ports': [{'name': 'http', 'port': TENSORBOARD_PORT}],
  }
  deployment = {
    'replicas': 1,
    'selector': {'matchLabels': labels},
    'template': {
      'metadata': {'labels': labels},
      'spec': {
        **make_security(run),
        'containers': [container],
        'volumes': volumes,
      },
    },
  }
  # No `ingress`: what nobody is allowed.
  policy = {'podSelector': {'matchLabels': labels}, 'policyTypes': ('Ingress',)}
  return [
    (
      '---- TensorBoard ----\nNo Pod may reach it, as it shows the run to all.'
      '\nkubectl port-forward comes from the node.',
      run.make('networking.k8s.io/v1', 'NetworkPolicy', name, policy, **labels),
    ),
    ('', run.make('v1', 'Service', name, service, **labels)),
    ('', run.make('apps/v1', 'Deployment', name, deployment, **labels)),
  ]
