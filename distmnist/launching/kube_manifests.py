"""The manifests of a run on Kubernetes, as plain dicts.

The tasks come from kube_jobs or kube_units; here is what is around them: who
reaches whom, the file of a problem, a TensorBoard.
"""

import posixpath

from distmnist.launching import (
  kube_jobs,
  kube_objects,
  kube_patch,
  kube_pods,
  kube_units,
)

_MAKERS = {
  'job': kube_jobs.make,
  'jobset': kube_units.make_jobset,
  'tfjob': kube_units.make_tfjob,
  'trainjob': kube_units.make_trainjob,
}
KINDS = list(_MAKERS)


def make(job, options):
  """Returns the manifests, a list of dicts in the order of their creation.

  Raises:
    cli.UsageError: one of options.patches fits none of them.
  """
  documents = _MAKERS[options.kind](job, options)
  if job.num_ps + job.num_workers > 1:
    documents = [make_network_policy(options), *documents]
  if options.problem is not None:
    documents = [make_config_map(job, options), *documents]
  if options.tensorboard:
    documents += make_tensorboard(options)
  return kube_patch.apply(documents, options.patches)


def make_config_map(job, options):
  """Returns the manifest (dict) of the file of --problem."""
  name = posixpath.basename(job.flag('problem'))
  return kube_objects.make(
    options,
    'ConfigMap',
    kube_pods.name_problem(options),
    kube_objects.labels_of(options),
    {name: options.problem.decode()},
    field='data',
  )


def make_network_policy(options):
  """Returns the manifest (dict) of who reaches the ports of the tasks."""
  labels = kube_objects.labels_of(options)
  peers = {'podSelector': {'matchLabels': labels}}
  ports = [{'protocol': 'TCP', 'port': kube_pods.PORT}]
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
  return kube_objects.make(options, 'NetworkPolicy', options.name, labels, spec)


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
    kube_objects.make(options, kind, name, labels, spec)
    for kind, spec in specs.items()
  ]
