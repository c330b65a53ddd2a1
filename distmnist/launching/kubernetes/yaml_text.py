"""The manifests of a run on Kubernetes as the text that kubectl reads."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from distmnist.common import cli
from distmnist.launching import jobs
from distmnist.launching.kubernetes.kubectl import Object

if TYPE_CHECKING:
  from distmnist.launching.kubernetes.manifests import Options

# Strings that kubectl, unlike PyYAML, takes for numbers or booleans unless they
# are quoted: 1e-3, 0o7, 08, y.
_QUOTED = re.compile(r'([-+]?\.?[0-9][0-9a-fox_.+-]*|[yn])$', re.IGNORECASE)
_NEVER_FOLDED = 2**31 - 1  # Characters: the largest int of C.
_NEEDED = {
  'jobset': 'JobSet, an add-on of Kubernetes',
  'trainjob': 'Kubeflow Trainer v2, which brings JobSet',
}
_WHO_REACHES_TASKS = """
TensorFlow asks for no password and encrypts nothing: anyone who reaches a
task's port can execute code in it. The NetworkPolicy admits only the tasks of
this run.
"""


def write(job: jobs.Job, options: Options, documents: list[Object]) -> str:
  """Returns the manifests as YAML, below comments on how to use them.

  Args:
    documents: the manifests.

  Raises:
    cli.RunError: PyYAML is not installed.
  """
  comment = [f'# {line}'.rstrip() for line in _describe(job, options)]
  return '\n'.join([*comment, dump(documents)])


def dump(documents: list[Object]) -> str:
  """Returns dicts as YAML that kubectl reads as they are.

  Raises:
    cli.RunError: PyYAML is not installed.
  """
  yaml = _import_yaml()

  # The dumper of libyaml writes the same, eight times as fast.
  class Dumper(getattr(yaml, 'CSafeDumper', yaml.SafeDumper)):
    def ignore_aliases(self, data: object) -> bool:
      return True

  Dumper.add_implicit_resolver('!quoted', _QUOTED, None)
  Dumper.add_representer(str, _represent_text)
  return yaml.dump_all(
    documents, Dumper=Dumper, sort_keys=False, width=_NEVER_FOLDED
  )


def load(text: str) -> list[Any]:
  """Returns what the documents of a YAML text hold, but for empty ones.

  Raises:
    ValueError: it is no YAML, in one line.
    cli.RunError: PyYAML is not installed.
  """
  yaml = _import_yaml()
  try:
    return [each for each in yaml.safe_load_all(text) if each is not None]
  except yaml.YAMLError as error:
    raise ValueError(' '.join(str(error).split())) from error


def _import_yaml() -> Any:
  """Returns the module; raises cli.RunError if it is not installed."""
  try:
    import yaml  # noqa: PLC0415 (extra kubernetes)
  except ImportError as error:
    raise cli.RunError(
      "PyYAML is not installed: pip install 'distmnist[kubernetes]', or"
      ' pip install pyyaml'
    ) from error
  return yaml


def _represent_text(dumper: Any, text: str) -> Any:
  """Writes a text of several lines, such as a file, line by line."""
  style = '|' if '\n' in text else None
  return dumper.represent_scalar('tag:yaml.org,2002:str', text, style)


def _describe(job: jobs.Job, options: Options) -> list[str]:
  """Returns lines that say what to do with the manifests."""
  name = options.name
  kubectl = 'kubectl'
  if options.namespace:
    kubectl += f' -n {options.namespace}'
  chief = 'worker-0' if options.kind == 'job' else 'chief-0'
  workers = 'worker' if job.num_workers == 1 else 'workers'
  lines = [
    f'{name}: {job.num_ps} ps and {job.num_workers} {workers}, by'
    ' distmnist.launch --launcher=kubernetes',
    '',
    'start   kubectl create -f FILE',
    f'watch   {kubectl} logs -f job/{name}-{chief}',
    f'tasks   {kubectl} get pods -l run={name}',
    'end     kubectl delete -f FILE',
  ]
  if options.kind in _NEEDED:
    lines.append(f'needs   {_NEEDED[options.kind]}')
  if job.num_ps + job.num_workers > 1:
    lines += _WHO_REACHES_TASKS.splitlines()
  return lines
