"""Patches, and those of their page in the manifests of each kind."""

import re
import shutil

import pytest

from distmnist.common import cli
from tests.support import kube_schemas, manifests
from tests.support.manifests import container_of, find, make, templates_of
from tests.support.paths import REPO

yaml = pytest.importorskip('yaml')
needs_kubectl = pytest.mark.skipif(
  not shutil.which('kubectl'), reason='no kubectl'
)
# A TrainJob's objects are those of a JobSet, in one more.
each_kind = pytest.mark.parametrize('kind', ['job', 'trainjob'])


def read_page():
  """Returns {heading: its blocks of YAML} of the page of ready patches."""
  page = (REPO / 'docs' / 'launching.md').read_text()
  found = {}
  for section in re.split('\n##+ ', page)[1:]:
    title, _, text = section.partition('\n')
    if blocks := re.findall(r'^```yaml\n(.*?)^```', text, re.M | re.S):
      found[title] = blocks
  return found


@pytest.fixture
def patched(tmp_path):
  """Returns patched(text of a patch, fields of the run) -> the manifests."""

  def make_patched(text, **fields):
    path = tmp_path / 'patch.yaml'
    path.write_text(text)
    return make(patch=str(path), **fields)

  return make_patched


def jobs_of(documents):
  """Returns the specs of the Jobs, also of those in a JobSet."""
  parts = [each for d in documents for each in manifests.unpack(d)]
  return [each['spec'] for each in parts if each['kind'] == 'Job']


def spec_of(documents, kind):
  """Returns the spec of the one object of a kind, also of one in another."""
  parts = [each for d in documents for each in manifests.unpack(d)]
  (spec,) = [each['spec'] for each in parts if each['kind'] == kind]
  return spec


def is_in_pods(documents, check, roles=('ps', 'worker', 'evaluator')):
  """Whether `check` of a template holds for the Pods of these roles alone."""
  templates = templates_of(documents).values()
  assert {t['metadata']['labels']['role'] for t in templates} >= set(roles)
  return all(
    bool(check(each)) == (each['metadata']['labels']['role'] in roles)
    for each in templates
  )


def has_spec(**fields):
  return lambda template: fields.items() <= template['spec'].items()


# What a reader may take for something other than a string.
WORDS = '--a=1e-3\n', '1e3', '0o7', 'y', 'No', '~', '1:30', '# a\n\nb\tc: d \n'
# Heading -> of each block, the kinds it is for and whether it is in their
# manifests. The others of a block are no patches, but complete objects.
ALL = tuple(manifests.KINDS)
READY = {
  'Nodes and taints': [
    (ALL, lambda d: is_in_pods(d, has_spec(nodeSelector={'pool': 'gpu'})))
  ],
  'Priority': [
    (ALL, lambda d: is_in_pods(d, has_spec(priorityClassName='high')))
  ],
  'A private registry': [
    (
      ALL,
      lambda d: (
        is_in_pods(d, has_spec(imagePullSecrets=[{'name': 'registry'}]))
        and is_in_pods(
          d,
          lambda t: (
            container_of(t)['imagePullPolicy'] == 'Always'
            and container_of(t)['image'] == 'distmnist:1'
          ),
        )
      ),
    )
  ],
  'Removal after the end': [
    (
      ('job',),
      lambda d: {j['ttlSecondsAfterFinished'] for j in jobs_of(d)} == {86400},
    ),
    (
      ('jobset', 'trainjob'),
      lambda d: spec_of(d, 'JobSet')['ttlSecondsAfterFinished'] == 86400,
    ),
  ],
  'A deadline': [
    (ALL, lambda d: {j['activeDeadlineSeconds'] for j in jobs_of(d)} == {7200})
  ],
  'A larger /tmp': [
    (
      ALL,
      lambda d: is_in_pods(
        d,
        lambda t: (
          {'name': 'tmp', 'emptyDir': {'sizeLimit': '20Gi'}}
          in t['spec']['volumes']
        ),
      ),
    )
  ],
  'Another user': [
    (
      ALL,
      lambda d: is_in_pods(
        d,
        lambda t: (
          t['spec']['securityContext']['runAsUser'] == 4242
          and t['spec']['securityContext']['runAsNonRoot']
        ),
      ),
    )
  ],
  'A namespace that denies egress': [
    (
      ALL,
      lambda d: (
        len(spec_of(d, 'NetworkPolicy')['egress']) == 3
        and len(spec_of(d, 'NetworkPolicy')['ingress']) == 1
      ),
    )
  ],
  'Workers on separate nodes': [
    (
      ALL,
      lambda d: is_in_pods(d, lambda t: 'affinity' in t['spec'], ['worker']),
    )
  ],
  'Volcano': [
    ((), None),
    (
      ALL,
      lambda d: is_in_pods(
        d,
        lambda t: (
          'scheduling.k8s.io/group-name' in t['metadata']['annotations']
        ),
      ),
    ),
    (
      ('trainjob',),
      lambda d: (
        spec_of(d, 'TrainingRuntime')['podGroupPolicy'] == {'volcano': {}}
        and is_in_pods(d, has_spec(schedulerName='volcano'))
      ),
    ),
  ],
  'A TensorBoard': [((), None)],
}


@pytest.mark.slow
@needs_kubectl
@each_kind
def test_the_ready_patches_are_in_the_manifests_of_each_kind(patched, kind):
  page = read_page()
  given = [
    (title, text, check)
    for title, rows in READY.items()
    for text, (kinds, check) in zip(page[title], rows, strict=True)
    if kind in kinds
  ]
  file = '---\n'.join(text for _, text, _ in given)
  documents = patched(file, kind=kind, num_ps=2, evaluator=True)
  wrong = [title for title, _, check in given if not check(documents)]
  assert wrong == []
  kube_schemas.validate(documents)


@pytest.mark.slow
def test_the_page_has_no_other_patches_and_complete_objects_fit_the_schemas():
  assert read_page().keys() == READY.keys()
  (text,) = read_page()['A TensorBoard']
  kube_schemas.validate(list(yaml.safe_load_all(text)))


@pytest.mark.slow
@needs_kubectl
@each_kind
def test_all_that_is_not_patched_is_as_without(patched, kind):
  fields = {'kind': kind, 'namespace': 'ml', 'train_flags': WORDS}
  documents = patched('kind: Pod\nspec: {schedulerName: mine}', **fields)
  for template in templates_of(documents).values():
    assert template['spec'].pop('schedulerName') == 'mine'
  assert documents == manifests.make_as_read(**fields)


@pytest.mark.slow
@needs_kubectl
@each_kind
def test_patches_of_a_file_are_merged_one_after_the_other(patched, kind):
  text = """
kind: Pod
spec: {schedulerName: mine, nodeSelector: {a: '1'}}
---
kind: Pod
metadata: {name: ps}
spec:
  nodeSelector: {a: null, b: '2'}
  containers:
  - name: tensorflow
    env:
    - {name: A, value: '1e3'}
    - {name: HOME, $patch: delete}
  - {name: sidecar, image: s}
"""
  documents = patched(text, kind=kind, num_ps=2)
  for template in templates_of(documents).values():
    spec = template['spec']
    is_ps = template['metadata']['labels']['role'] == 'ps'
    assert spec['schedulerName'] == 'mine'
    assert spec['nodeSelector'] == ({'b': '2'} if is_ps else {'a': '1'})
    assert [c['name'] for c in spec['containers']] == (
      ['tensorflow', 'sidecar'] if is_ps else ['tensorflow']
    )
    env = {e['name']: e.get('value') for e in spec['containers'][0]['env']}
    assert (env.get('A'), 'HOME' in env) == (
      ('1e3', False) if is_ps else (None, True)
    )


@pytest.mark.slow
@needs_kubectl
def test_an_object_may_be_deleted_and_one_may_be_meant_by_its_name(patched):
  text = 'kind: NetworkPolicy\n$patch: delete\n---\nkind: Job\n'
  text += 'metadata: {name: mnist-ps-0, labels: {a: b}}\nspec: {suspend: true}'
  documents = patched(text)
  assert not find(documents, 'NetworkPolicy')
  for name, job in find(documents, 'Job').items():
    assert ('suspend' in job['spec']) == (name == 'mnist-ps-0')
    assert ('a' in job['metadata']['labels']) == (name == 'mnist-ps-0')


@pytest.mark.parametrize(
  ('text', 'error'),
  [
    ('', 'has no document'),
    ('- a', 'expected documents with a kind'),
    ('spec: {}', 'expected documents with a kind'),
    ('kind: [a]', 'expected documents with a kind'),
    ('kind: Pod\nmetadata: a', 'expected documents with a kind'),
    ('kind: {', 'flow node'),
    ('kind: Pods', 'no Pods: expected one of Job mnist-ps-0, .*Pod ps,'),
    ('kind: Pod\nmetadata: {name: chief}', 'no Pod named chief: expected'),
  ],
)
def test_what_is_no_patch_or_fits_nothing_is_refused(patched, text, error):
  with pytest.raises(cli.UsageError, match=error) as found:
    patched(text)
  assert str(found.value).startswith('--kube_patch=')
  assert '\n' not in str(found.value)


@pytest.mark.slow
@needs_kubectl
@pytest.mark.parametrize(
  ('text', 'error'),
  [
    (
      'kind: Job\nspec: {template: {metadata: null}}',
      'app=.* of its Pods from',
    ),
    (
      'kind: Pod\nmetadata: {labels: {role: null}}',
      'role=ps of its Pods from Job',
    ),
    (
      'kind: Job\nmetadata: {labels: {$patch: replace, app: distmnist}}',
      'the label run=mnist from Job mnist-ps-0: .* adds to metadata.labels,',
    ),
    ('kind: Pod\nspec: {containers: a}', 'kubectl kustomize: '),
    (
      'kind: Pod\nspec: {containers: [{env: [{name: A, value: b}]}]}',
      'the container tensorflow from Job .* names each of its containers$',
    ),
  ],
)
def test_a_patch_that_breaks_its_object_is_refused(patched, text, error):
  with pytest.raises(cli.UsageError, match=error):
    patched(text)


@pytest.mark.slow
@needs_kubectl
@pytest.mark.parametrize(
  ('text', 'error'),
  [
    (
      'kind: JobSet\nspec: {replicatedJobs: [{name: ps}]}',
      'spec.replicatedJobs of the JobSet, .* a patch of kind: Job$',
    ),
    (
      'kind: TrainingRuntime\nspec: {template: {metadata: {}}}',
      'spec.template of the TrainingRuntime, .* a patch of kind: JobSet$',
    ),
  ],
)
def test_a_part_of_another_object_is_patched_as_itself(patched, text, error):
  with pytest.raises(cli.UsageError, match=error):
    patched(text, kind='trainjob')


def test_no_kubectl_is_said(patched, monkeypatch, tmp_path):
  monkeypatch.setenv('PATH', str(tmp_path))
  with pytest.raises(cli.RunError, match='which --kube_patch needs: install'):
    patched('kind: Pod\nspec: {schedulerName: mine}')


def test_a_file_that_is_not_there_is_refused():
  with pytest.raises(cli.UsageError, match='--kube_patch=none.yaml: .*No such'):
    make(patch='none.yaml')
