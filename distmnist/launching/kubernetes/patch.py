"""--kube_patch: what a cluster needs in the manifests and no flag offers.

A file of YAML documents, each a part of an object that is merged into all
objects of its `kind`, or into that of its `metadata.name` where one is given:

  kind: Pod
  metadata: {name: worker}        # or ps, or evaluator; without: all Pods
  spec:
    affinity: ...
  ---
  kind: NetworkPolicy
  spec:
    ingress: ...

`kubectl kustomize` merges (a strategic merge). It knows the named lists of
Kubernetes's own kinds alone, and replaces lists of others: so each Pod, Job and
JobSet is patched as itself, before one becomes a part of the other.
"""

from __future__ import annotations

import pathlib
import tempfile

from distmnist.common import cli
from distmnist.launching.kubernetes import yaml_text
from distmnist.launching.kubernetes.kubectl import Kubectl, Object


def apply(documents: list[Object], path: str) -> list[Object]:
  """Returns the documents with the patches of a file merged into them.

  Raises:
    cli.UsageError: the file cannot be read, or one of its patches fits no
      document, cannot be merged, or takes what the run needs.
    cli.RunError: there is no kubectl, or no PyYAML.
  """
  flag = f'--kube_patch={path}'
  try:
    given = yaml_text.load(pathlib.Path(path).read_text('utf-8'))
  except (OSError, ValueError) as error:
    raise cli.UsageError(f'{flag}: {error}') from error
  if not given:
    raise cli.UsageError(f'{flag} has no document')
  patches = [each for one in given for each in _aim(one, documents, flag)]
  aimed = {_key(each) for each in patches}
  kustomization = {
    'resources': ['objects.yaml'],
    'patches': [{'patch': yaml_text.dump([each])} for each in patches],
  }
  files = {
    'kustomization.yaml': [kustomization],
    'objects.yaml': [d for d in documents if _key(d) in aimed],
  }
  kubectl = Kubectl('kube_patch')
  with tempfile.TemporaryDirectory(prefix='distmnist-') as folder:
    for name, content in files.items():
      (pathlib.Path(folder) / name).write_text(yaml_text.dump(content), 'utf-8')
    try:
      merged = yaml_text.load(kubectl.change('kustomize', folder))
    except (cli.RunError, ValueError) as error:
      raise cli.UsageError(f'{flag}: {error}') from error
  found = {_key(each): each for each in merged}
  for document in documents:
    if after := found.get(_key(document)):
      _check_kept(document, after, flag)
  return [
    found[_key(d)] if _key(d) in aimed else d
    for d in documents
    if _key(d) in found or _key(d) not in aimed  # Else it was deleted.
  ]


def _key(document: Object) -> tuple[str, str]:
  return document['kind'], document['metadata']['name']


def _aim(given: object, documents: list[Object], flag: str) -> list[Object]:
  """Returns a patch for each of the documents that one of a file is meant for.

  Raises:
    cli.UsageError: it is no patch, or fits none of them.
  """
  named = given if isinstance(given, dict) else {}
  kind, metadata = named.get('kind'), named.get('metadata') or {}
  if not isinstance(kind, str) or not isinstance(metadata, dict):
    raise cli.UsageError(
      f'{flag}: expected documents with a kind, such as "kind: Pod", and the'
      ' fields to merge, such as spec'
    )
  name = metadata.get('name')
  more = {k: v for k, v in metadata.items() if k != 'name'}
  fields = {
    k: v
    for k, v in named.items()
    if k not in ('apiVersion', 'kind', 'metadata')
  }
  found, known = [], set()
  for document in documents:
    targets = {(document['kind'], document['metadata']['name'])}
    if document['kind'] == 'Job':
      labels = document['spec']['template']['metadata']['labels']
      targets.add(('Pod', labels['role']))
    known |= targets
    for target in targets & {(kind, name)} if name else targets:
      if target[0] == kind:
        found.append(_make_patch(document, kind, more, fields))
  if not found:
    of_name = f' named {name}' if name else ''
    raise cli.UsageError(
      f'{flag}: this run has no {kind}{of_name}: expected one of'
      f' {", ".join(sorted(f"{k} {n}" for k, n in known))}'
    )
  return found


def _make_patch(
  document: Object, kind: str, metadata: Object, fields: Object
) -> Object:
  """Returns a patch of one document, or of the template of its Pods."""
  if kind == 'Pod':
    template = {**({'metadata': metadata} if metadata else {}), **fields}
    metadata, fields = {}, {'spec': {'template': template}}
  own = {
    name: value
    for name, value in document['metadata'].items()
    if name in ('name', 'namespace')
  }
  return {
    'apiVersion': document['apiVersion'],
    'kind': document['kind'],
    'metadata': {**metadata, **own},
    **fields,
  }


def _check_kept(before: Object, after: Object, flag: str) -> None:
  """Refuses a patch that takes a label, or its container, from an object.

  Raises:
    cli.UsageError: it does.
  """
  for name in _find_kept(before):
    if name not in _find_kept(after):
      raise cli.UsageError(
        f'{flag} takes {name} from {" ".join(_key(before))}: expected a patch '
        'that adds to metadata.labels, and names each of its containers'
      )


def _find_kept(document: Object) -> list[str]:
  """Returns what the run needs of an object and of its Pods, in words."""
  template = (document.get('spec') or {}).get('template') or {}
  labels = [
    f'the label {name}={value}{of}'
    for each, of in ((document, ''), (template, ' of its Pods'))
    for name, value in (
      (each.get('metadata') or {}).get('labels') or {}
    ).items()
  ]
  containers = (template.get('spec') or {}).get('containers') or []
  return labels + [f'the container {each.get("name")}' for each in containers]
