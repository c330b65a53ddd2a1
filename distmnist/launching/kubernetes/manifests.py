"""The manifests of a run on Kubernetes, as plain dicts.

A run is a Job and a Service for each task, or one object of a kind that knows
several tasks (unit_objects.py). Around them come who reaches whom, the file of
a problem, a TensorBoard.
"""

import base64
import dataclasses
import posixpath
import re

from distmnist.common import cli
from distmnist.launching import jobs
from distmnist.launching.kubernetes import objects, patch, pods, unit_objects

_CONFIG_MAP_KEY = re.compile(r'[-._a-zA-Z0-9]+')


def make_jobs(job, options):
  """Returns a Job for each task and its Service, a list of dicts."""
  documents = []
  for task in _make_tasks(job, options):
    index = f'{task.job_name}-{task.task_index}'
    name = f'{options.name}-{index}'
    labels = objects.labels_of(options, role=task.job_name, task=index)
    serving = {}
    if task.port:
      service = {
        'selector': labels,
        'publishNotReadyAddresses': True,
        'ports': [{'name': 'grpc', 'port': task.port}],
      }
      documents.append(objects.make(options, 'Service', name, labels, service))
      serving = pods.make_serving()
    pod = pods.make_task(options, task.job_name, task.argv, serving)
    spec = {
      **objects.make_time_limits(options),
      'backoffLimit': job.max_restarts,
      'podFailurePolicy': objects.make_failure_policy(),
      'template': {
        'metadata': {'labels': labels},
        'spec': {'restartPolicy': 'Never', **pod},
      },
    }
    documents.append(objects.make(options, 'Job', name, labels, spec))
  return documents


def _make_tasks(job, options):
  """Returns the list of jobs.Task; the host of each is its Service."""
  counts = {'ps': job.num_ps, 'worker': job.num_workers}
  ps_hosts, worker_hosts = (
    [f'{options.name}-{job_name}-{i}:{pods.PORT}' for i in range(count)]
    for job_name, count in counts.items()
  )

  def make(job_name):
    own_flags = pods.make_resource_flags(options, job_name)
    words = [*own_flags, *options.train_flags]
    return jobs.make_tasks(ps_hosts, worker_hosts, words, module=job.module)

  own_flags = pods.make_resource_flags(options, 'evaluator')
  words = (*own_flags, *options.train_flags)
  return [
    *make('ps')[: job.num_ps],
    *make('worker')[job.num_ps :],
    *jobs.make_evaluator_tasks(dataclasses.replace(job, train_flags=words)),
  ]


_MAKERS = {
  'job': make_jobs,
  'jobset': unit_objects.make_jobset,
  'tfjob': unit_objects.make_tfjob,
  'trainjob': unit_objects.make_trainjob,
}
KINDS = list(_MAKERS)


def make(job, options):
  """Returns the manifests, a list of dicts in the order of their creation.

  Raises:
    cli.UsageError: one of options.patches does not fit them, or Kubernetes
      takes no file by the name of --problem's.
  """
  documents = _MAKERS[options.kind](job, options)
  if job.num_ps + job.num_workers > 1:
    documents = [make_network_policy(options), *documents]
  if options.problem is not None:
    documents = [make_config_map(job, options), *documents]
  if options.tensorboard:
    documents += make_tensorboard(options)
  return patch.apply(documents, options.patches)


def make_config_map(job, options):
  """Returns the manifest (dict) of the file of --problem.

  Raises:
    cli.UsageError: Kubernetes takes no file by its name.
  """
  named = job.flag('problem')
  name = posixpath.basename(named)
  if not _CONFIG_MAP_KEY.fullmatch(name):
    raise cli.UsageError(
      f'--problem={named}: Kubernetes takes only letters, digits, -, _ and . in'
      ' the name of a file: rename it'
    )
  try:
    field, text = 'data', options.problem.decode()
  except UnicodeDecodeError:  # Python reads other encodings as well.
    field, text = 'binaryData', base64.b64encode(options.problem).decode()
  return objects.make(
    options,
    'ConfigMap',
    pods.name_problem(options),
    objects.labels_of(options),
    {name: text},
    field=field,
  )


def make_network_policy(options):
  """Returns the manifest (dict) that says who reaches the tasks' ports."""
  labels = objects.labels_of(options)
  peers = {'podSelector': {'matchLabels': labels}}
  ports = [{'protocol': 'TCP', 'port': pods.PORT}]
  spec = {
    **peers,
    'policyTypes': ['Ingress'],
    'ingress': [{'from': [peers], 'ports': ports}],
  }
  if options.egress is not None:
    spec['policyTypes'] = ['Ingress', 'Egress']
    names = [{'protocol': p, 'port': 53} for p in ('UDP', 'TCP')]
    spec['egress'] = [
      {'to': [peers], 'ports': ports},
      {'ports': names},
      *({'to': [{'ipBlock': {'cidr': each}}]} for each in options.egress),
    ]
  return objects.make(options, 'NetworkPolicy', options.name, labels, spec)


def make_tensorboard(options):
  """Returns the manifests of a TensorBoard on the logdir, a list of dicts."""
  # Not the labels of the tasks, whose port it must not reach.
  labels = objects.labels_of(options, app='tensorboard')
  selector = {'matchLabels': labels}
  specs = {
    # No `ingress`: no Pod may reach it, as it shows the run to anyone.
    'NetworkPolicy': {'podSelector': selector, 'policyTypes': ['Ingress']},
    'Service': {
      'selector': labels,
      'ports': [{'name': 'http', 'port': pods.TENSORBOARD_PORT}],
    },
    'Deployment': {
      'replicas': 1,
      'selector': selector,
      'template': {
        'metadata': {'labels': labels},
        'spec': pods.make_tensorboard(options),
      },
    },
  }
  name = f'{options.name}-tensorboard'
  return [
    objects.make(options, kind, name, labels, spec)
    for kind, spec in specs.items()
  ]
