import json
import random
import shutil
import subprocess
import sys

import pytest

from distmnist.common import cli
from distmnist.launching import jobs
from distmnist.launching.kubernetes import yaml_text
from tests.support import manifests

yaml = pytest.importorskip('yaml')

# What a reader may take for something other than a string.
WORDS = ['yes', 'No', 'null', '~', '1e3', '1e-3', '0x1f', '0o7', '08', '.5e3']
WORDS += ['1:30', '-', '---', '- a', 'a: b', 'a #b', '#', '.inf', '2026-01-01']
WORDS += ['<<', 'a:', '--a=b', '1_0', '', 'y', 'N', '-.5', '1E5', '0B1', '4Gi']
WORDS += ['--c=\u00fc\n', '\x85', "it's", '--b=$(HOME) $$', f'--d={"x " * 99}']
# Of all kinds, and with what YAML has to escape or to fold.
CHARS = [*' \t\n\r"\'\\:#-{}[],&*!|>%@`?a1', *'\x07\x7f\x85\xa0\xe9']
CHARS += [*'\u2028\ufeff\u4e2d\U0001f600']


def make_text(draw):
  if draw.random() < 0.5:
    return draw.choice(WORDS)
  return ''.join(draw.choices(CHARS, k=draw.randrange(20)))


def make_value(draw, depth):
  kind = draw.randrange(5 if depth else 3)
  if kind == 3:
    return [make_value(draw, depth - 1) for _ in range(draw.randrange(5))]
  if kind == 4:
    return make_dict(draw, depth)
  number = draw.choice([0, -7, 10**20]), draw.random() < 0.5
  return make_text(draw) if kind == 0 else number[kind - 1]


def make_dict(draw, depth):
  keys = {make_text(draw) for _ in range(1 + draw.randrange(4))}
  return {key: make_value(draw, depth - 1) for key in sorted(keys)}


def test_what_is_written_is_what_is_read():
  draw = random.Random(0)
  documents = [make_dict(draw, 3) for _ in range(100)]
  assert list(yaml.safe_load_all(yaml_text.dump(documents))) == documents


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which('kubectl'), reason='no kubectl')
@pytest.mark.parametrize('kind', manifests.KINDS)
def test_kubectl_reads_what_we_have_written(kind):
  documents = manifests.make(kind=kind, namespace='1e3', train_flags=WORDS)
  done = subprocess.run(
    ['kubectl', 'annotate', '--local', '--output=json', '--filename=-', 'a=b'],
    input=yaml_text.dump(documents),
    capture_output=True,
    text=True,
    timeout=200,
  )
  assert (done.returncode, done.stderr) == (0, '')
  # JSON, as PyYAML does not read all of kubectl's own YAML.
  read = json.loads(f'[{done.stdout.strip()}]'.replace('\n}\n{', '\n},\n{'))
  for document in read:
    assert document['metadata'].pop('annotations') == {'a': 'b'}
  assert read == documents


def test_it_reads_as_a_person_would_write_it(monkeypatch):
  shared = {'app': 'mnist'}
  document = {
    'kind': 'Job',
    'labels': shared,
    'selector': shared,
    'args': ['--ps_hosts=a:2222,b:2222', f'--note={"a b " * 30}c', '', '10'],
    'limits': {'memory': '4Gi', 'cpu': 2, 'nvidia.com/gpu': 1},
    'rules': [{'values': (1,), 'ok': True}, {'value': '1e-3'}],
  }
  text = (
    'kind: Job\n'
    'labels:\n'
    '  app: mnist\n'
    'selector:\n'
    '  app: mnist\n'
    'args:\n'
    '- --ps_hosts=a:2222,b:2222\n'
    f'- --note={"a b " * 30}c\n'
    "- ''\n"
    "- '10'\n"
    'limits:\n'
    '  memory: 4Gi\n'
    '  cpu: 2\n'
    '  nvidia.com/gpu: 1\n'
    'rules:\n'
    '- values:\n'
    '  - 1\n'
    '  ok: true\n'
    "- value: '1e-3'\n"
  )
  assert yaml_text.dump([document]) == text
  assert yaml_text.dump([document, {'a': 1}]) == f'{text}---\na: 1\n'
  # Without libyaml it is the same.
  monkeypatch.delattr(yaml, 'CSafeDumper', raising=False)
  assert yaml_text.dump([document]) == text


def test_no_pyyaml_is_said_in_one_line(monkeypatch):
  monkeypatch.setitem(sys.modules, 'yaml', None)
  with pytest.raises(cli.RunError, match=r"'distmnist\[kubernetes\]'") as found:
    yaml_text.write(jobs.Job(), manifests.make_options(), [])
  assert '\n' not in str(found.value)


def test_the_first_lines_say_what_to_do_and_who_may_come_in():
  options = manifests.make_options(namespace='ml')
  text = yaml_text.write(jobs.Job(1, 2), options, [{'apiVersion': 'v1'}])
  head = text[: text.index('apiVersion')]
  assert head.startswith('# mnist: 1 ps and 2 workers, by distmnist.launch')
  assert '# watch   kubectl -n ml logs -f job/mnist-worker-0\n' in head
  assert 'anyone who reaches' in head
  assert all(line.startswith('#') for line in head.splitlines())
  assert max(map(len, head.splitlines())) <= 80


def test_one_worker_alone_has_no_port_to_speak_of():
  text = yaml_text.write(jobs.Job(0, 1), manifests.make_options(), [])
  assert text.startswith('# mnist: 0 ps and 1 worker, by')
  assert 'anyone who reaches' not in text
