"""The manifests of a run on Kubernetes, as plain dicts.

kind `job`: a Service and a Job for each task. The Service has an IP of its own,
which stays when the Pod behind it is replaced, and it leads to Pods that are
not ready yet, as tasks wait for each other before any of them is ready. kind
`tfjob`: a TFJob of Kubeflow, whose operator tells each task by TF_CONFIG who it
is.
"""

import posixpath

from distmnist.common import cli
from distmnist.launching import jobs, kube_pods

_APIS = {
  'ConfigMap': 'v1',
  'Deployment': 'apps/v1',
  'Job': 'batch/v1',
  'NetworkPolicy': 'networking.k8s.io/v1',
  'Service': 'v1',
  'TFJob': 'kubeflow.org/v1',
}
_FAILURE_POLICY = {
  'rules': [
    # That a node is drained or preempted is not the task's fault.
    {
      'action': 'Ignore',
      'onPodConditions': [{'type': 'DisruptionTarget', 'status': 'True'}],
    },
    {
      'action': 'FailJob',
      'onExitCodes': {'operator': 'In', 'values': list(cli.FINAL_CODES)},
    },
  ]
}


def make(job, options):
  """Returns the manifests, a list of dicts in the order of their creation."""
  make_tasks = make_tfjob if options.kind == 'tfjob' else make_jobs
  documents = make_tasks(job, options)
  if job.num_ps + job.num_workers > 1:
    documents = [make_network_policy(options), *documents]
  if options.problem is not None:
    documents = [make_config_map(job, options), *documents]
  if options.tensorboard:
    documents += make_tensorboard(options)
  return documents


def make_config_map(job, options):
  """Returns the manifest (dict) of the file of --problem."""
  name = posixpath.basename(job.flag('problem'))
  return _make_object(
    options,
    'ConfigMap',
    kube_pods.name_problem(options),
    _labels_of(options),
    {name: options.problem.decode()},
    field='data',
  )


def make_network_policy(options):
  """Returns the manifest (dict) of who reaches the ports of the tasks."""
  peers = {'matchLabels': _labels_of(options)}
  ports = [{'protocol': 'TCP', 'port': kube_pods.PORT}]
  return _make_object(
    options,
    'NetworkPolicy',
    options.name,
    _labels_of(options),
    {
      'podSelector': peers,
      'policyTypes': ['Ingress'],
      'ingress': [{'from': [{'podSelector': peers}], 'ports': ports}],
    },
  )


def make_jobs(job, options):
  """Returns a Job for each task and its Service, a list of dicts."""
  documents = []
  for task in _make_tasks(job, options):
    index = f'{task.job_name}-{task.task_index}'
    name = f'{options.name}-{index}'
    labels = _labels_of(options, task=index)
    serving = {}
    if task.port:
      service = {
        'selector': labels,
        'publishNotReadyAddresses': True,
        'ports': [{'name': 'grpc', 'port': task.port}],
      }
      documents.append(_make_object(options, 'Service', name, labels, service))
      serving = {
        'ports': [{'name': 'grpc', 'containerPort': task.port}],
        'readinessProbe': {'tcpSocket': {'port': 'grpc'}, 'periodSeconds': 5},
      }
    pod = kube_pods.make_task(options, task.job_name, task.argv, serving)
    spec = {
      'backoffLimit': job.max_restarts,
      'podFailurePolicy': _FAILURE_POLICY,
      'template': {
        'metadata': {'labels': labels},
        'spec': {'restartPolicy': 'Never', **pod},
      },
    }
    documents.append(_make_object(options, 'Job', name, labels, spec))
  return documents


def make_tfjob(job, options):
  """Returns the TFJob, a list of one dict."""
  # OnFailure and not ExitCode, which takes our 3 (another task was lost) for
  # final and counts no restarts. The price: 1 and 2 are tried again.
  policy = 'OnFailure' if job.max_restarts else 'Never'
  # No readiness probe: the operator's Services have no address for a Pod that
  # is not ready, and the tasks wait for each other.
  serving = {'ports': [{'name': 'tfjob-port', 'containerPort': kube_pods.PORT}]}

  def make_replicas(job_name, count):
    own_flags = kube_pods.make_resource_flags(options, job_name)
    argv = ('python', '-m', job.module, *own_flags, *options.train_flags)
    return {
      'replicas': count,
      'restartPolicy': policy,
      'template': {
        'metadata': {'labels': _labels_of(options)},
        'spec': kube_pods.make_task(options, job_name, argv, serving),
      },
    }

  counts = {
    'PS': ('ps', job.num_ps),
    'Chief': ('worker', 1),
    'Worker': ('worker', job.num_workers - 1),
  }
  run_policy = {'cleanPodPolicy': 'Running'}
  if job.max_restarts:
    # The operator gives up once all tasks together reach this number.
    run_policy['backoffLimit'] = job.max_restarts + 1
  spec = {
    'runPolicy': run_policy,
    'tfReplicaSpecs': {
      kind: make_replicas(job_name, count)
      for kind, (job_name, count) in counts.items()
      if count
    },
  }
  return [
    _make_object(options, 'TFJob', options.name, _labels_of(options), spec)
  ]


def make_tensorboard(options):
  """Returns the manifests of a TensorBoard on the logdir, a list of dicts."""
  # Not the labels of the tasks, whose port it must not reach.
  labels = {'app': 'tensorboard', 'run': options.name}
  selector = {'matchLabels': labels}
  specs = {
    # No `ingress`: no Pod may reach it, as it shows the run to anyone.
    'NetworkPolicy': {'podSelector': selector, 'policyTypes': ['Ingress']},
    'Service': {
      'selector': labels,
      'ports': [{'name': 'http', 'port': kube_pods.TENSORBOARD_PORT}],
    },
    'Deployment': {
      'replicas': 1,
      'selector': selector,
      'template': {
        'metadata': {'labels': labels},
        'spec': kube_pods.make_tensorboard(options),
      },
    },
  }
  name = f'{options.name}-tensorboard'
  return [
    _make_object(options, kind, name, labels, spec)
    for kind, spec in specs.items()
  ]


def _make_tasks(job, options):
  """Returns the list of jobs.Task; the host of each is its Service."""
  counts = {'ps': job.num_ps, 'worker': job.num_workers}
  ps_hosts, worker_hosts = (
    [f'{options.name}-{job_name}-{i}:{kube_pods.PORT}' for i in range(count)]
    for job_name, count in counts.items()
  )

  def make(job_name):
    own_flags = kube_pods.make_resource_flags(options, job_name)
    words = [*own_flags, *options.train_flags]
    return jobs.make_tasks(ps_hosts, worker_hosts, words, module=job.module)

  return make('ps')[: job.num_ps] + make('worker')[job.num_ps :]


def _labels_of(options, **more):
  return {'app': 'distmnist', 'run': options.name, **more}


def _make_object(options, kind, name, labels, spec, field='spec'):
  metadata = {'name': name}
  if options.namespace:
    metadata['namespace'] = options.namespace
  return {
    'apiVersion': _APIS[kind],
    'kind': kind,
    'metadata': {**metadata, 'labels': labels},
    field: spec,
  }
