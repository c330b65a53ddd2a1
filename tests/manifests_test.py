import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from distmnist import manifests

yaml = pytest.importorskip('yaml')

TEXTS = st.text(max_size=20) | st.sampled_from(
  ['yes', 'No', 'null', '~', '1e3', '0x1f', '1:30', '-', '---', '- a', 'a: b']
  + ['a #b', '#', '=', '.inf', '2026-01-01', '1Gi', '0o7', '<<', 'a:', '--a=b']
)
SCALARS = TEXTS | st.integers() | st.booleans()
INLINE = SCALARS | st.lists(SCALARS).map(tuple)
VALUES = st.recursive(
  INLINE,
  lambda inner: (
    st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4)
  ),
  max_leaves=12,
)


def to_lists(value):
  if isinstance(value, (tuple, list)):
    return [to_lists(element) for element in value]
  if isinstance(value, dict):
    return {key: to_lists(element) for key, element in value.items()}
  return value


@settings(
  deadline=None,
  derandomize=True,
  database=None,
  max_examples=20,
  suppress_health_check=list(HealthCheck),
)
@given(st.lists(st.dictionaries(TEXTS, VALUES, min_size=1), min_size=1))
def test_what_is_written_is_what_is_read(documents):
  text = manifests.dump([('a\nb', document) for document in documents])
  assert list(yaml.safe_load_all(text)) == to_lists(documents)


def test_it_reads_as_a_person_would_write_it():
  document = {
    'kind': 'Job',
    'labels': {},
    'rules': [{'values': (1, 2), 'ok': True}, {'names': []}],
    'args': ['--ps_hosts=a:2222,b:2222', 'say "hi"', '', 'yes', '10'],
    'limits': {'cpu': 2, 'memory': '4Gi', 'nvidia.com/gpu': 1},
  }
  assert manifests.dump(
    [('what it is\n\nand why', document), ('', {'a': 1})]
  ) == (
    '# what it is\n'
    '#\n'
    '# and why\n'
    'kind: Job\n'
    'labels: {}\n'
    'rules:\n'
    '- values: [1, 2]\n'
    '  ok: true\n'
    '- names: []\n'
    'args:\n'
    '- --ps_hosts=a:2222,b:2222\n'
    '- "say \\"hi\\""\n'
    '- ""\n'
    '- "yes"\n'
    '- "10"\n'
    'limits:\n'
    '  cpu: 2\n'
    '  memory: 4Gi\n'
    '  nvidia.com/gpu: 1\n'
    '---\n'
    'a: 1\n'
  )
