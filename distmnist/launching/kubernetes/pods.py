"""The Pods of a run on Kubernetes: what each of them may use and reach.

Pure: options in, plain dicts out.
"""

import math

from distmnist.common.names import ATTEMPT, FIRST_PORT

PORT = FIRST_PORT
TENSORBOARD_PORT = 6006
DATA_DIR = '/data'
LOGS_DIR = '/logs'
PROBLEM_DIR = '/problem'
# How long before Kubernetes would kill it a task leaves.
KILL_MARGIN_SECS = 5
# The rest of what the Pod Security Standard "restricted" asks for, and more.
_CONTAINER_SECURITY = {
  'allowPrivilegeEscalation': False,
  'readOnlyRootFilesystem': True,
  'capabilities': {'drop': ['ALL']},
}


def make_resource_flags(options, job_name):
  """Returns the flags of train (list of str) for what a task may use."""
  # TensorFlow counts the cores of the node, not those of the Pod.
  cpu = options.find_resources(job_name)['cpu']
  cores = float(cpu[:-1]) / 1000 if cpu.endswith('m') else float(cpu)
  threads = math.ceil(cores)
  found = [
    f'--intra_op_parallelism_threads={threads}',
    f'--inter_op_parallelism_threads={max(2, threads)}',
  ]
  if job_name == 'worker' and options.gpus:
    found.append(f'--num_gpus={options.gpus}')
  return found


def make_serving():
  """Returns the part of a task's container (dict) that is about its port."""
  return {
    'ports': [{'name': 'grpc', 'containerPort': PORT}],
    'readinessProbe': {'tcpSocket': {'port': 'grpc'}, 'periodSeconds': 5},
  }


def make_task(options, job_name, argv, serving, more_env=()):
  """Returns the spec (dict) of a task's Pod.

  Args:
    options: options.Options.
    job_name: 'ps', 'worker' or 'evaluator'.
    argv: tuple of str, 'python', '-m', the module and its flags.
    serving: dict, the part of the container that is about its port.
    more_env: list of dict, variables that this kind of object needs.
  """
  is_worker = job_name == 'worker'
  # A Pod is not told whether it replaces another. As a second attempt it takes
  # a missing task for lost rather than for a mistake, and may find that the run
  # is over.
  env = {'HOME': '/tmp', ATTEMPT: '2'}
  requests = dict(options.find_resources(job_name))
  if requests['cpu'].isdecimal():
    requests['cpu'] = int(requests['cpu'])
  limits = dict(requests)
  if is_worker and options.gpus:
    limits['nvidia.com/gpu'] = options.gpus
  else:
    # Some images give a container all GPUs of the node.
    env['CUDA_VISIBLE_DEVICES'] = ''
  container = {
    # Kubeflow looks for this name.
    'name': 'tensorflow',
    **_make_image(options),
    **_make_command(argv),
    'env': [*_make_env(env), *more_env],
    **serving,
    'resources': {'requests': requests, 'limits': limits},
  }
  return {
    'terminationGracePeriodSeconds': math.ceil(options.stop_grace_secs)
    + KILL_MARGIN_SECS,
    # The kernel withholds SIGTERM from a process 1 without a handler, and while
    # importing Python has none. With this, process 1 is Kubernetes's own.
    'shareProcessNamespace': True,
    # A ps neither reads nor writes a file.
    **_make_pod(
      options,
      container,
      {} if job_name == 'ps' else options.claims,
      has_problem=options.problem is not None,
    ),
  }


def make_tensorboard(options):
  """Returns the spec (dict) of the Pod that shows the logdir."""
  argv = ['python', '-m', 'tensorboard.main', f'--logdir={options.logdir}']
  argv += [f'--port={TENSORBOARD_PORT}', '--bind_all']
  container = {
    'name': 'tensorboard',
    **_make_image(options),
    **_make_command(argv),
    'env': _make_env({'HOME': '/tmp'}),
    'ports': [{'name': 'http', 'containerPort': TENSORBOARD_PORT}],
    'readinessProbe': {'tcpSocket': {'port': 'http'}},
    'resources': {
      'requests': {'cpu': '100m', 'memory': '512Mi'},
      'limits': {'cpu': 1, 'memory': '2Gi'},
    },
  }
  claims = {LOGS_DIR: options.claims[LOGS_DIR]}
  return _make_pod(options, container, claims, readOnly=True)


def _make_image(options):
  policy = options.pull_policy
  found = {'image': options.image}
  return {**found, 'imagePullPolicy': policy} if policy else found


def _make_command(argv):
  # Kubernetes replaces $(NAME), and reads $$ as $.
  words = [word.replace('$', '$$') for word in argv]
  return {'command': words[:3], 'args': words[3:]}


def _make_env(values):
  return [{'name': name, 'value': value} for name, value in values.items()]


def _make_pod(options, container, claims, has_problem=False, **mount):
  """Returns the part of a spec (dict) that all Pods have in common.

  Args:
    options: options.Options.
    container: dict, the one container.
    claims: dict of path -> PersistentVolumeClaim mounted there.
    has_problem: bool, whether the ConfigMap of the problem is mounted.
    mount: more fields for the mount of each claim.
  """
  names = {path: path.strip('/') for path in claims}
  config_map = {'name': name_problem(options)}
  problems = [{'name': 'problem', 'configMap': config_map}] * has_problem
  return {
    **options.pod_fields,
    # Code that an attacker runs in a task finds no cluster credentials there.
    'automountServiceAccountToken': False,
    'securityContext': {
      'runAsNonRoot': True,
      'runAsUser': options.user,
      'runAsGroup': options.user,
      'fsGroup': options.user,
      'fsGroupChangePolicy': 'OnRootMismatch',
      'seccompProfile': {'type': 'RuntimeDefault'},
    },
    'containers': [
      {
        **container,
        'volumeMounts': [
          {'name': 'tmp', 'mountPath': '/tmp'},
          *(
            {'name': name, 'mountPath': path, **mount}
            for path, name in names.items()
          ),
          *(
            {'name': p['name'], 'mountPath': PROBLEM_DIR, 'readOnly': True}
            for p in problems
          ),
        ],
        'securityContext': _CONTAINER_SECURITY,
      }
    ],
    'volumes': [
      {'name': 'tmp', 'emptyDir': {'sizeLimit': options.tmp_size}},
      *(
        {'name': name, 'persistentVolumeClaim': {'claimName': claims[path]}}
        for path, name in names.items()
      ),
      *problems,
    ],
  }


def name_problem(options):
  """Returns the name (str) of the ConfigMap of the problem's file."""
  return f'{options.name}-problem'
