"""The manifests of a run on Kubernetes, as plain dicts.

job_objects or unit_objects make the tasks; this file adds what surrounds them:
who reaches whom, the file of a problem, a TensorBoard.
"""

import base64
import posixpath
import re

from distmnist.common import cli
from distmnist.launching.kubernetes import (
  job_objects,
  objects,
  patch,
  pods,
  unit_objects,
)

_MAKERS = {
  'job': job_objects.make,
  'jobset': unit_objects.make_jobset,
  'tfjob': unit_objects.make_tfjob,
  'trainjob': unit_objects.make_trainjob,
}
KINDS = list(_MAKERS)
_CONFIG_MAP_KEY = re.compile(r'[-._a-zA-Z0-9]+')


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
