"""Patches, and how kubectl itself would merge them."""

import json
import shutil
import subprocess

import pytest

from distmnist.common import cli
from distmnist.launching.kubernetes import patch as patch_lib
from tests.support.manifests import container_of, find, make, templates_of

yaml = pytest.importorskip('yaml')

POD = {
  'labels': {'app': 'x'},
  'spec': {
    'nodeSelector': {'a': '1', 'b': '2'},
    'tolerations': [{'key': 'a', 'operator': 'Exists'}],
    'containers': [
      {
        'name': 'tensorflow',
        'image': 'a',
        'args': ['--a', '--b'],
        'env': [{'name': 'A', 'value': '1'}, {'name': 'B', 'value': '2'}],
        'ports': [{'name': 'grpc', 'containerPort': 2222}],
        'volumeMounts': [{'name': 'tmp', 'mountPath': '/tmp'}],
      }
    ],
    'volumes': [{'name': 'tmp', 'emptyDir': {'sizeLimit': '2Gi'}}],
  },
}
PATCHES = [
  {'spec': {'nodeSelector': {'a': None, 'c': '3'}}},
  {'spec': {'nodeSelector': {'$patch': 'replace', 'c': '3'}}},
  {'spec': {'tolerations': [{'key': 'b', 'operator': 'Exists'}]}},
  {'spec': {'tolerations': None, 'hostNetwork': True}},
  {'spec': {'affinity': {'nodeAffinity': {}}}},
  {'spec': {'containers': [{'name': 'tensorflow', 'args': ['--c']}]}},
  {
    'spec': {
      'containers': [
        {
          'name': 'tensorflow',
          'env': [
            {'name': 'C', 'value': '3'},
            {'name': 'A', 'value': '9'},
            {'name': 'B', '$patch': 'delete'},
          ],
          'volumeMounts': [{'name': 'shm', 'mountPath': '/dev/shm'}],
          'ports': [{'containerPort': 2222, 'name': 'tf'}],
        },
        {'name': 'sidecar', 'image': 's'},
      ],
      'volumes': [
        {'name': 'shm', 'emptyDir': {'medium': 'Memory'}},
        {'name': 'tmp', 'emptyDir': {'sizeLimit': '9Gi'}},
      ],
    }
  },
  {'spec': {'volumes': [{'$patch': 'replace'}, {'name': 'a', 'emptyDir': {}}]}},
]


def sort(value):
  """Sorts lists of named entries: kubectl has them in another order."""
  if isinstance(value, dict):
    return {name: sort(each) for name, each in sorted(value.items())}
  if isinstance(value, list):
    return sorted(map(sort, value), key=lambda each: json.dumps(each))
  return value


@pytest.mark.skipif(not shutil.which('kubectl'), reason='no kubectl')
@pytest.mark.parametrize('patch', PATCHES, ids=range(len(PATCHES)))
def test_it_merges_as_kubectl_does(tmp_path, patch):
  metadata = {'name': 'a'}
  pod = {'apiVersion': 'v1', 'kind': 'Pod', 'metadata': metadata}
  pod['spec'] = POD['spec']
  (tmp_path / 'pod.json').write_text(json.dumps(pod))
  done = subprocess.run(
    [
      *('kubectl', 'patch', '--local', '--type=strategic', '-o', 'json'),
      *('-f', tmp_path / 'pod.json', '--patch', json.dumps(patch)),
    ],
    env={'PATH': '/usr/local/bin:/usr/bin:/bin', 'KUBECONFIG': '/dev/null'},
    capture_output=True,
    text=True,
    timeout=60,
  )
  assert done.returncode == 0, done.stderr
  assert sort(patch_lib.merge(pod, patch)) == sort(json.loads(done.stdout))


def test_what_is_merged_is_not_changed():
  before = json.dumps(POD)
  patch_lib.merge(POD, PATCHES[6])
  assert json.dumps(POD) == before


def test_a_new_entry_comes_last():
  merged = patch_lib.merge(POD, PATCHES[6])['spec']
  assert [c['name'] for c in merged['containers']] == ['tensorflow', 'sidecar']
  assert [v['name'] for v in merged['volumes']] == ['tmp', 'shm']


def read(tmp_path, text):
  path = tmp_path / 'patch.yaml'
  path.write_text(text)
  return patch_lib.read(path)


@pytest.mark.parametrize('kind', ['job', 'jobset', 'tfjob', 'trainjob'])
def test_a_patch_of_pods_reaches_those_of_its_name(tmp_path, kind):
  patches = read(
    tmp_path,
    """
kind: Pod
spec: {schedulerName: mine}
---
kind: Pod
metadata:
  name: worker
  annotations: {a: b}
spec:
  containers:
  - name: tensorflow
    env: [{name: A, value: '1'}]
""",
  )
  documents = make(kind=kind, num_ps=2, tensorboard=True, patches=patches)
  for template in templates_of(documents).values():
    assert template['spec']['schedulerName'] == 'mine'
    is_worker = template['metadata']['labels'].get('role') == 'worker'
    annotations = template['metadata'].get('annotations')
    assert annotations == ({'a': 'b'} if is_worker else None)
    env = container_of(template)['env']
    assert ({'name': 'A', 'value': '1'} in env) == is_worker


def test_a_patch_of_an_object_reaches_all_of_its_kind(tmp_path):
  patches = read(
    tmp_path, 'kind: Job\nmetadata: {labels: {a: b}}\nspec: {suspend: true}'
  )
  jobs = find(make(patches=patches), 'Job')
  assert len(jobs) == 3
  for job in jobs.values():
    assert job['spec']['suspend'] is True
    assert job['metadata']['labels']['a'] == 'b'
    assert job['metadata']['labels']['app'] == 'distmnist'


@pytest.mark.parametrize(
  ('text', 'error'),
  [
    ('', 'has no document'),
    ('- a', 'expected documents with a kind'),
    ('spec: {}', 'expected documents with a kind'),
    ('kind: [a]', 'expected documents with a kind'),
    ('kind: Pod\nmetadata: a', 'expected documents with a kind'),
    ('kind: {', 'flow node'),
  ],
)
def test_what_is_no_patch_is_refused(tmp_path, text, error):
  with pytest.raises(cli.UsageError, match=error) as found:
    read(tmp_path, text)
  assert str(found.value).startswith('--kube_patch=')


def test_a_file_that_is_not_there_is_refused(tmp_path):
  with pytest.raises(cli.UsageError, match='--kube_patch=.*No such file'):
    patch_lib.read(tmp_path / 'none.yaml')


@pytest.mark.parametrize(
  ('text', 'error'),
  [
    ('kind: Pods', 'no Pods: expected one of Job mnist-ps-0, .*Pod ps,'),
    ('kind: Pod\nmetadata: {name: chief}', 'no Pod named chief: expected'),
    (
      'kind: Job\nspec: {template: {metadata: null}}\n---\nkind: Pod\nspec: {}',
      'leaves the Pods of a Job without their label app',
    ),
    ('kind: Pod\nmetadata: {labels: null}', 'Job without their label app'),
    (
      'kind: Job\nmetadata: {$patch: replace, labels: {}}',
      'leaves a Job without its metadata.name',
    ),
    (
      'kind: Pod\nspec: {containers: [{env: [{name: A, value: b}]}]}',
      'an entry of containers has no name, which says',
    ),
    (
      'kind: Service\nspec: {ports: [{protocol: TCP}]}',
      'an entry of ports has no containerPort or port, which',
    ),
  ],
)
def test_a_patch_of_nothing_is_refused_as_is_one_that_breaks_its_object(
  tmp_path, text, error
):
  with pytest.raises(cli.UsageError, match=error):
    make(patches=read(tmp_path, text))
