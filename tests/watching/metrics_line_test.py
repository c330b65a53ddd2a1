"""Which lines of metrics.jsonl are ours, and how they are written."""

import json
import math

import pytest

from distmnist.watching import metrics_file

GOOD = {'task': 'worker 1', 'kind': 'sample', 'life': 'a', 'time': 1.5}
GOOD |= {'state': 'training', 'step': 3, 'loss': None, 'staleness': {'0': 4}}


def write_line(folder, **fields):
  folder = folder / 'metrics' / 'worker_1'
  folder.mkdir(parents=True, exist_ok=True)
  with open(folder / 'metrics.jsonl', 'a') as file:
    file.write(json.dumps(GOOD | fields) + '\n')


@pytest.mark.parametrize(
  'fields',
  [
    *({'task': x} for x in ('worker x', 'ps', 3, None, ['ps 0'])),
    *({'time': x} for x in (math.nan, math.inf, 10**400, -1, '1', None)),
    *({'life': x} for x in ([], 3, None)),
    *({'kind': x} for x in ([], 3, None, 'evaluation', 'end', 'event')),
    *({'kind': 'means', 'epoch': 1, 'steps': x} for x in ('x', None, 3)),
    *({'staleness': x} for x in ({'x': 1}, {'0': 'x'}, [1], {'0': 0.5})),
    *({'step': x} for x in ('x', math.nan, 10**400, 2.5)),
    *({'kind': 'event', 'event': x} for x in ('ended', 'started', 3)),
    {'kind': 'event', 'event': 'started', 'about': 'worker x'},
    {'kind': 'start', 'process': [1]},
    {'kind': 'start', 'process': {'machine': 'x'}},
    {'kind': 'start', 'every_secs': 'often'},
    *({'kind': 'start', 'attempt': x} for x in ('third', None)),
    {'kind': 'start', 'host': ['a']},
    *({'kind': 'start', 'versions': x} for x in ('x', -1, {'keras': 3})),
    {'task': 'launcher', 'kind': 'start', 'tasks': ['worker x']},
    *({'task': 'launcher', 'kind': 'start', 'tasks': x} for x in (3, None)),
    {'waiting': [[1]]},
    {'metrics': {'accuracy': 'good'}},
    {'metrics': [1]},
  ],
)
def test_an_odd_line_is_left_out(tmp_path, fields):
  write_line(tmp_path)
  write_line(tmp_path, **fields)
  write_line(tmp_path, note=[{'whatever': 1}])
  assert len(list(metrics_file.iterate(str(tmp_path)))) == 2


def test_deep_nests_are_left_out_as_well(tmp_path):
  write_line(tmp_path)
  with open(tmp_path / 'metrics' / 'worker_1' / 'metrics.jsonl', 'a') as file:
    file.write('[' * 100_000 + '\n')
  assert len(list(metrics_file.iterate(str(tmp_path)))) == 1
