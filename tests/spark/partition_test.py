"""What the tasks of a stage tell each other."""

import pytest

from distmnist.spark import partition


def test_hosts_and_ports_are_taken():
  given = [
    '{"host": "10.0.0.1", "port": 1, "examples": 0}',
    '{"host": "[::1]", "port": 2, "examples": 9}',
  ]
  assert partition.parse_gathered(given) == [
    {'host': '10.0.0.1', 'port': 1, 'examples': 0},
    {'host': '[::1]', 'port': 2, 'examples': 9},
  ]


@pytest.mark.parametrize(
  'message',
  [
    *('no JSON', '[]', '{}', '{"host": "a"}', '{"host": "a", "port": "1"}'),
    *('{"host": "a", "port": true}', '{"host": "a", "port": 0}'),
    '{"host": "a", "port": 65536}',
    '{"host": "a,b:2222", "port": 1, "examples": 0}',
    '{"host": "a --logdir=x", "port": 1, "examples": 0}',
    '{"host": 1, "port": 1, "examples": 0}',
  ],
)
def test_anything_else_is_refused(message):
  with pytest.raises(ValueError, match='is not a host and port'):
    partition.parse_gathered([message])
