"""--kube_patch: what a cluster needs in the manifests and no flag offers.

A file of YAML documents, each a part of an object that is merged into all
objects of its `kind`, or into that of its `metadata.name` where one is given:

  kind: Pod
  metadata: {name: worker}        # or ps, or tensorboard; without: all Pods
  spec:
    affinity: ...
  ---
  kind: NetworkPolicy
  spec:
    ingress: ...

It is Kubernetes's strategic merge: maps are merged, null removes a field, and a
list is replaced, but lists whose entries have names (containers, env, volumes
...) are merged by name. `$patch: delete` or `$patch: replace` overrides this.
"""

import copy
import dataclasses

from distmnist.common import cli
from distmnist.launching.kubernetes import yaml_text

# The fields that tell the entries of a list apart.
_KEYS = {
  'containers': ('name',),
  'env': ('name',),
  'hostAliases': ('ip',),
  'imagePullSecrets': ('name',),
  'initContainers': ('name',),
  'ports': ('containerPort', 'port'),
  'replicatedJobs': ('name',),
  'resourceClaims': ('name',),
  'schedulingGates': ('name',),
  'topologySpreadConstraints': ('topologyKey',),
  'volumeDevices': ('devicePath',),
  'volumeMounts': ('mountPath',),
  'volumes': ('name',),
}
_DIRECTIVE = '$patch'


@dataclasses.dataclass(frozen=True)
class Patch:
  """Fields to merge into the objects of a kind.

  Attributes:
    kind: str, such as 'Job', or 'Pod' for the templates of Pods.
    name: str, of one object, or the role of one kind of Pods; None for all.
    fields: dict, what is merged.
  """

  kind: str
  name: str | None
  fields: dict


def read(path):
  """Returns the Patches of a file, a tuple.

  Raises:
    cli.UsageError: it cannot be read, or is not a patch.
    cli.RunError: PyYAML is not installed.
  """
  yaml = yaml_text.import_yaml()
  try:
    with open(path, encoding='utf-8') as file:
      documents = [d for d in yaml.safe_load_all(file) if d is not None]
  except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
    raise cli.UsageError(f'--kube_patch={path}: {error}') from error
  if not documents:
    raise cli.UsageError(f'--kube_patch={path} has no document')
  return tuple(_make_patch(path, document) for document in documents)


def _make_patch(path, document):
  metadata = document.get('metadata') if isinstance(document, dict) else None
  if (
    not isinstance(document, dict)
    or not isinstance(document.get('kind'), str)
    or not isinstance(metadata, dict | None)
  ):
    raise cli.UsageError(
      f'--kube_patch={path}: expected documents with a kind, such as'
      ' "kind: Pod", and the fields to merge, such as spec'
    )
  fields = {k: v for k, v in document.items() if k not in ('kind', 'metadata')}
  more = {k: v for k, v in (metadata or {}).items() if k != 'name'}
  if more:
    fields['metadata'] = more
  return Patch(document['kind'], (metadata or {}).get('name'), fields)


def apply(documents, patches):
  """Returns the documents (list of dict) with all patches merged into them.

  Raises:
    cli.UsageError: a patch fits none of them, or breaks one.
  """
  documents = copy.deepcopy(documents)
  for patch in patches:
    targets = list(_find(documents))
    fitting = [
      target
      for kind, name, target in targets
      if kind == patch.kind and patch.name in (None, name)
    ]
    if not fitting:
      named = f' named {patch.name}' if patch.name else ''
      known = sorted({f'{kind} {name}' for kind, name, _ in targets})
      raise cli.UsageError(
        f'--kube_patch: this run has no {patch.kind}{named}: expected one of'
        f' {", ".join(known)}'
      )
    for target in fitting:
      merged = merge(target, patch.fields)
      target.clear()
      target.update(merged)
    for _ in _find(documents):  # What it needs of them is still there.
      pass
  return documents


def _find(documents):
  """Yields (kind, name, the dict to merge into) for objects and their Pods."""
  for document in documents:
    name = _read(document, 'metadata', 'name')
    if name is None:
      raise cli.UsageError(
        f'--kube_patch leaves a {document["kind"]} without its metadata.name'
      )
    yield document['kind'], name, document
    yield from (('Pod', *found) for found in find_templates(document))


def find_templates(document):
  """Yields (role, template) for the Pods of an object (dict).

  Raises:
    cli.UsageError: a template has no labels, by which Services find its Pods.
  """
  parts = [document.get('spec', {})]
  while parts:
    part = parts.pop(0)
    if isinstance(part, list):
      parts += part
    elif isinstance(part, dict):
      if _read(part, 'spec', 'containers'):
        app = _read(part, 'metadata', 'labels', 'app')
        if app is None:
          raise cli.UsageError(
            f'--kube_patch leaves the Pods of a {document["kind"]} without'
            ' their label app in metadata.labels'
          )
        yield part['metadata']['labels'].get('role', app), part
      else:
        parts += part.values()


def _read(value, *names):
  """Returns the field at a path of `names`, or None if there is none."""
  for name in names:
    value = value.get(name) if isinstance(value, dict) else None
  return value


def merge(base, patch):
  """Returns `base` with `patch` merged into it; both are dicts.

  Raises:
    cli.UsageError: an entry of a list lacks what tells it from the others.
  """
  if patch.get(_DIRECTIVE) == 'replace':
    return {k: v for k, v in patch.items() if k != _DIRECTIVE}
  merged = dict(base)
  for name, value in patch.items():
    if value is None:
      merged.pop(name, None)
    elif isinstance(value, dict):
      before = merged.get(name)
      merged[name] = merge(before if isinstance(before, dict) else {}, value)
    elif name in _KEYS and _is_list_of_maps(value):
      merged[name] = _merge_lists(name, merged.get(name) or [], value)
    else:
      merged[name] = value
  return merged


def _is_list_of_maps(value):
  return isinstance(value, list) and all(isinstance(e, dict) for e in value)


def _merge_lists(name, base, patch):
  if {_DIRECTIVE: 'replace'} in patch:
    return [entry for entry in patch if entry != {_DIRECTIVE: 'replace'}]
  merged = list(base)
  for entry in patch:
    key = next((k for k in _KEYS[name] if k in entry), None)
    if key is None:
      raise cli.UsageError(
        f'--kube_patch: an entry of {name} has no {" or ".join(_KEYS[name])},'
        ' which says which one it is'
      )
    same = [e for e in merged if e.get(key) == entry[key]]
    if entry.get(_DIRECTIVE) == 'delete':
      merged = [e for e in merged if e not in same]
    elif same:
      merged = [merge(e, entry) if e in same else e for e in merged]
    else:
      merged.append(entry)
  return merged
