"""Finds its way in the manifests of Kubernetes, which are dicts."""

from distmnist.launching import jobs, kube_manifests, kube_pods

KINDS = ['job', 'tfjob']


def make_options(**fields):
  """Returns kube_pods.Options, those of `fields` as given."""
  default = {
    'kind': 'job',
    'name': 'mnist',
    'namespace': None,
    'image': 'distmnist:1',
    'resources': {
      'ps': {'cpu': '1', 'memory': '1Gi'},
      'worker': {'cpu': '2', 'memory': '4Gi'},
    },
    'gpus': 0,
    'claims': {'/data': 'mnist-data', '/logs': 'mnist-logs'},
    'user': 1000,
    'logdir': '/logs/mnist',
    'tensorboard': False,
    'stop_grace_secs': 25.0,
    'train_flags': ('--logdir=/logs/mnist',),
  }
  return kube_pods.Options(**{**default, **fields})


def make(num_ps=1, num_workers=2, max_restarts=0, given=(), **fields):
  """Returns the list of manifests of a run with these fields of Options."""
  job = jobs.Job(num_ps, num_workers, given=given, max_restarts=max_restarts)
  return kube_manifests.make(job, make_options(**fields))


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
