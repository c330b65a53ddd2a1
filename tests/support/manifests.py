"""Finds its way in the manifests of Kubernetes, which are dicts."""

import json

from distmnist.launching import jobs
from distmnist.launching.kubernetes import manifests

KINDS = list(manifests.WORKLOADS)


def make_options(**fields):
  """Returns manifests.Options, with `fields` as given."""
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
    'stop_grace_secs': 25.0,
    'train_flags': ('--logdir=/logs/mnist',),
  }
  return manifests.Options(**{**default, **fields})


def make(
  num_ps=1,
  num_workers=2,
  max_restarts=0,
  given=(),
  evaluator=False,
  **fields,
):
  """Returns the list of manifests of a run with these fields of Options."""
  job = jobs.Job(
    num_ps,
    num_workers,
    given=given,
    max_restarts=max_restarts,
    evaluator=evaluator,
  )
  return manifests.make(job, make_options(**fields))


def make_as_read(**fields):
  """Returns `make` as kubectl reads it: without a tuple."""
  return json.loads(json.dumps(make(**fields)))


def selects(selector, template):
  return selector.items() <= template['metadata']['labels'].items()


def find(documents, kind):
  return {d['metadata']['name']: d for d in documents if d['kind'] == kind}


def templates_of(documents):
  """Returns {name of a Job: template of its Pods}."""
  return {
    each['metadata']['name']: each['spec']['template']
    for document in documents
    for each in unpack(document)
    if each['kind'] == 'Job'
  }


def container_of(template):
  (container,) = template['spec']['containers']
  return container


def flags_of(template):
  words = container_of(template)['args']
  return dict(word.removeprefix('--').split('=', 1) for word in words)


def find_jobs(document):
  """Returns the Jobs (list of dict) that a JobSet would make."""
  return [
    {
      'apiVersion': 'batch/v1',
      'kind': 'Job',
      **job['template'],
      'metadata': {'name': job['name'], **job['template'].get('metadata', {})},
    }
    for job in document['spec']['replicatedJobs']
  ]


def unpack(document):
  """Yields an object and those that its operator makes of its templates."""
  yield document
  if document['kind'] == 'TrainingRuntime':
    template = document['spec']['template']
    yield from unpack({**document, 'kind': 'JobSet', **template})
  if document['kind'] == 'JobSet':
    yield from find_jobs(document)
