"""The manifests of a run on Kubernetes as the text that kubectl reads."""

import re
import textwrap

from distmnist.common import cli
from distmnist.launching.kubernetes import pods

# Strings that kubectl, unlike PyYAML, takes for numbers or booleans unless they
# are quoted: 1e-3, 0o7, 08, y.
_QUOTED = re.compile(r'([-+]?\.?[0-9][0-9a-fox_.+-]*|[yn])$', re.IGNORECASE)
_NEVER_FOLDED = 2**31 - 1  # Characters: the largest int of C.
# What kubectl logs calls the chief.
_CHIEFS = {
  'job': 'job/{}-worker-0',
  'jobset': 'job/{}-chief-0',
  'tfjob': '{}-chief-0',
  'trainjob': 'job/{}-chief-0',
}
_NEEDED = {
  'jobset': 'JobSet, an add-on of Kubernetes',
  'tfjob': "Kubeflow's training operator, which is deprecated: Trainer v2, its"
  ' successor, has no TFJob. See --kind=jobset and --kind=trainjob',
  'trainjob': 'Kubeflow Trainer v2, which brings JobSet',
}
_WHO_REACHES_TASKS = """
TensorFlow asks for no password and encrypts nothing: anyone who reaches a
task's port can execute code in it. The NetworkPolicy admits only the tasks of
this run.
"""
_WHO_REACHES_TENSORBOARD = """
The TensorBoard shows the run to anyone who reaches it. No Pod is admitted;
kubectl port-forward comes from the node.
"""


def write(job, options, documents):
  """Returns the manifests as YAML (str), below comments on how to use them.

  Args:
    job: jobs.Job.
    options: options.Options.
    documents: list of dict, the manifests.

  Raises:
    cli.RunError: PyYAML is not installed.
  """
  comment = [f'# {line}'.rstrip() for line in describe(job, options)]
  return '\n'.join([*comment, dump(documents)])


def dump(documents):
  """Returns dicts as YAML (str) that kubectl reads as they are.

  Raises:
    cli.RunError: PyYAML is not installed.
  """
  yaml = import_yaml()

  # The dumper of libyaml writes the same, eight times as fast.
  class Dumper(getattr(yaml, 'CSafeDumper', yaml.SafeDumper)):
    def ignore_aliases(self, data):
      return True

  Dumper.add_implicit_resolver('!quoted', _QUOTED, None)
  Dumper.add_representer(str, _represent_text)
  return yaml.dump_all(
    documents, Dumper=Dumper, sort_keys=False, width=_NEVER_FOLDED
  )


def import_yaml():
  """Returns the module; raises cli.RunError if it is not installed."""
  try:
    import yaml  # noqa: PLC0415 (extra kubernetes)
  except ImportError as error:
    raise cli.RunError(
      "PyYAML is not installed: pip install 'distmnist[kubernetes]', or"
      ' pip install pyyaml'
    ) from error
  return yaml


def _represent_text(dumper, text):
  """Writes a text of several lines, such as a file, line by line."""
  style = '|' if '\n' in text else None
  return dumper.represent_scalar('tag:yaml.org,2002:str', text, style)


def describe(job, options):
  """Returns what to do with the manifests, a list of lines (str)."""
  name = options.name
  kubectl = 'kubectl'
  if options.namespace:
    kubectl += f' -n {options.namespace}'
  chief = _CHIEFS[options.kind].format(name)
  workers = 'worker' if job.num_workers == 1 else 'workers'
  lines = [
    f'{name}: {job.num_ps} ps and {job.num_workers} {workers}, by'
    ' distmnist.launch --launcher=kubernetes',
    '',
    'start   kubectl apply -f FILE',
    f'watch   {kubectl} logs -f {chief}',
    f'tasks   {kubectl} get pods -l run={name}',
    'end     kubectl delete -f FILE',
  ]
  if options.kind in _NEEDED:
    needs = textwrap.wrap(_NEEDED[options.kind], 70)
    lines += [
      f'{"needs" if line is needs[0] else "":<7} {line}' for line in needs
    ]
  if options.tensorboard:
    lines.append(
      f'curves  {kubectl} port-forward service/{name}-tensorboard'
      f' {pods.TENSORBOARD_PORT}'
    )
  if job.num_ps + job.num_workers > 1:
    lines += _WHO_REACHES_TASKS.splitlines()
  if options.tensorboard:
    lines += _WHO_REACHES_TENSORBOARD.splitlines()
  return lines
