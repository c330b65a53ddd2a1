"""metrics.jsonl: whole lines, appended over lives, as the schema has them."""

import itertools
import json
import math
import os

import pytest

from distmnist.watching import metrics_file


def make(folder, task='ps 0', life='a'):
  return metrics_file.Writer(str(folder), task, life, host='h', pid=1)


def read_lines(folder, task='ps_0'):
  path = folder / 'metrics' / task / 'metrics.jsonl'
  return [json.loads(text) for text in path.read_text().splitlines()]


def test_each_life_begins_with_its_start(tmp_path):
  for life in 'ab':
    make(tmp_path, life=life).write('sample', state='serving')
  lines = read_lines(tmp_path)
  assert [(x['life'], x['kind']) for x in lines] == [
    *(('a', 'start'), ('a', 'sample'), ('b', 'start'), ('b', 'sample'))
  ]
  assert lines[0]['host'] == 'h'


def test_a_number_that_is_none_becomes_null_and_others_stay_short(tmp_path):
  fields = {'cost': float('nan'), 'metrics': {'a': 1 / 3, 'b': float('inf')}}
  make(tmp_path).write('sample', **fields)
  line = read_lines(tmp_path)[1]
  assert line['cost'] is None
  assert line['metrics'] == {'a': 0.3333333, 'b': None}


def test_a_line_that_was_cut_off_is_left_alone(tmp_path):
  make(tmp_path).write('sample', state='serving')
  path = tmp_path / 'metrics' / 'ps_0' / 'metrics.jsonl'
  path.write_bytes(path.read_bytes() + b'{"kind": "sam')
  make(tmp_path, life='b').write('sample', state='serving')
  lives = [line['life'] for line in metrics_file.read(str(tmp_path))]
  assert lives == ['a', 'a', 'b', 'b']


def test_nothing_is_made_where_there_is_no_logdir(tmp_path, logged):
  writer = make(tmp_path / 'run')
  assert writer.write('sample', state='serving')['state'] == 'serving'
  assert os.listdir(tmp_path) == []
  (tmp_path / 'run').mkdir()
  writer.write('sample', state='serving')
  assert [x['kind'] for x in read_lines(tmp_path / 'run')] == [
    *('start', 'sample')
  ]
  assert logged == []


def test_a_file_that_was_moved_away_begins_anew(tmp_path):
  writer = make(tmp_path)
  writer.write('sample', state='serving')
  (tmp_path / 'metrics' / 'ps_0').rename(tmp_path / 'earlier')
  writer.write('sample', state='serving')
  assert [x['kind'] for x in read_lines(tmp_path)] == ['start', 'sample']


def test_what_cannot_be_written_is_said_once(tmp_path, logged):
  (tmp_path / 'metrics').mkdir()
  (tmp_path / 'metrics' / 'ps_0').write_text('')
  writer = make(tmp_path)
  for _ in range(2):
    writer.write('sample', state='serving')
  assert logged == [
    f'{tmp_path}/metrics/ps_0/metrics.jsonl cannot be written: Not a '
    'directory; the training goes on without'
  ]


def test_no_link_is_followed(tmp_path, logged):
  (tmp_path / 'metrics' / 'ps_0').mkdir(parents=True)
  (tmp_path / 'metrics' / 'ps_0' / 'metrics.jsonl').symlink_to(
    tmp_path / 'victim'
  )
  make(tmp_path).write('sample', state='serving')
  assert not (tmp_path / 'victim').exists()
  assert len(logged) == 1


def test_a_follower_reads_each_line_once_and_no_half_one(tmp_path):
  follower = metrics_file.Follower(str(tmp_path))
  assert follower.read_new() == []
  make(tmp_path).write('sample', state='serving')
  make(tmp_path, 'worker 1').write('sample', state='training')
  tasks = [line['task'] for line in follower.read_new()]
  assert sorted(tasks) == ['ps 0', 'ps 0', 'worker 1', 'worker 1']
  path = tmp_path / 'metrics' / 'ps_0' / 'metrics.jsonl'
  with open(path, 'a') as file:
    file.write('{"kind": "end", "time": 1, ')
    file.flush()
    assert follower.read_new() == []
    file.write('"task": "ps 0", "life": "a", ')
    file.write('"ok": true, "text": ""}\nnonsense\n[1]\n')
  assert [line['kind'] for line in follower.read_new()] == ['end']


def test_a_follower_sees_that_a_file_is_another(tmp_path):
  follower = metrics_file.Follower(str(tmp_path))
  make(tmp_path).write('sample', state='serving')
  assert len(follower.read_new()) == 2
  (tmp_path / 'metrics' / 'ps_0').rename(tmp_path.parent / 'away')
  make(tmp_path, life='b').write('sample', state='serving')
  assert [line['life'] for line in follower.read_new()] == ['b', 'b']


@pytest.mark.parametrize('text', ['', 'x\n', '{"time": 3}\n'])
def test_the_first_time_of_no_line_is_unknown(tmp_path, text):
  (tmp_path / 'm').write_text(text)
  assert metrics_file.read_first_time(tmp_path / 'm') is None
  assert metrics_file.read_first_time(tmp_path / 'none') is None


def test_the_first_time_is_that_of_the_first_line(tmp_path):
  make(tmp_path).write('sample', state='serving')
  path = metrics_file.path_of(str(tmp_path), 'ps 0')
  first = metrics_file.read_first_time(path)
  assert first == read_lines(tmp_path)[0]['time']


GOOD = {'task': 'worker 1', 'kind': 'sample', 'life': 'a', 'time': 1.5}
GOOD |= {'state': 'training', 'step': 3, 'cost': None, 'staleness': {'0': 4}}


def write_line(folder, **fields):
  folder = folder / 'metrics' / 'worker_1'
  folder.mkdir(parents=True, exist_ok=True)
  with open(folder / 'metrics.jsonl', 'a') as file:
    file.write(json.dumps(GOOD | fields) + '\n')


@pytest.mark.parametrize(
  'fields',
  [
    *({'task': x} for x in ('worker x', 'ps', '', 3, None, ['ps 0'], 'gpu 1')),
    *({'time': x} for x in (math.nan, math.inf, 1e300, -1, '1', None, [1])),
    *({'life': x} for x in ([], {}, 3, None)),
    *({'kind': x} for x in ([], 3, None, 'evaluation', 'end', 'event')),
    *({'staleness': x} for x in ({'x': 1}, {'0': 'x'}, [1], 3, {'0': 0.5})),
    *({'step': x} for x in ('x', [1], math.nan)),
    *({'kind': 'event', 'event': x} for x in ('ended', 'started', [], 3)),
    {'kind': 'event', 'event': 'started', 'about': 'worker x'},
    {'kind': 'start', 'process': [1]},
    {'kind': 'start', 'process': {'machine': 'x'}},
    {'kind': 'start', 'every_secs': 'often'},
    {'kind': 'start', 'attempt': 'third'},
    {'task': 'launcher', 'kind': 'start', 'tasks': ['worker x']},
    {'task': 'launcher', 'kind': 'start', 'tasks': 3},
    {'waiting': [[1]]},
    {'metrics': {'accuracy': 'good'}},
    {'metrics': [1]},
  ],
)
def test_an_odd_line_is_left_out(tmp_path, fields):
  write_line(tmp_path)
  write_line(tmp_path, **fields)
  write_line(tmp_path, note=[{'whatever': 1}])
  assert len(metrics_file.read(str(tmp_path))) == 2


def test_deep_nests_are_left_out_as_well(tmp_path):
  write_line(tmp_path)
  with open(tmp_path / 'metrics' / 'worker_1' / 'metrics.jsonl', 'a') as file:
    file.write('[' * 100_000 + '\n')
  assert len(metrics_file.read(str(tmp_path))) == 1


def test_no_file_grows_for_ever(tmp_path, monkeypatch):
  monkeypatch.setattr(metrics_file, 'MAX_BYTES', 20_000)
  clock = itertools.count(1.7e9)
  monkeypatch.setattr(metrics_file.time, 'time', lambda: next(clock))
  follower = metrics_file.Follower(str(tmp_path))
  seen, num_steps = [], 1000
  for life in 'ab':
    writer = metrics_file.Writer(str(tmp_path), 'ps 0', life, host='h', pid=1)
    for step in range(num_steps):
      counts = {str(step % 3): 2} if life == 'a' else {}
      fields = {'state': 'serving', 'step': step, 'staleness': counts}
      writer.write('sample', **fields)
      seen += follower.read_new()
    writer.write('evaluation', split='test', step=num_steps, metrics={})
  path = metrics_file.path_of(str(tmp_path), 'ps 0')
  assert os.path.getsize(path) <= 20_000 + 200
  lines = metrics_file.read(str(tmp_path))
  assert [x['life'] for x in lines if x['kind'] == 'start'] == ['a', 'b']
  kept = [x for x in lines if x['kind'] == 'sample']
  assert kept[-1]['step'] == num_steps - 1
  ends = [i for i, x in enumerate(lines) if x['kind'] == 'evaluation']
  assert [lines[i - 1]['step'] for i in ends] == [num_steps - 1] * 2
  counted = [sum(x['staleness'].values()) for x in kept]
  assert sum(counted) == 2 * num_steps
  # One that follows has had each line once.
  seen += follower.read_new()
  assert len(seen) == 2 * (num_steps + 2) and not follower.has_lost


def test_a_large_file_is_known_by_its_summary_and_a_part(tmp_path, monkeypatch):
  clock = itertools.count(1.7e9)
  monkeypatch.setattr(metrics_file.time, 'time', lambda: next(clock))
  for life in 'abc':
    writer = make(tmp_path, life=life)
    for step in range(2000):
      writer.write('sample', state='serving', step=step)
    writer.write('evaluation', split='test', step=step, metrics={})
    if life != 'b':  # It is killed.
      writer.write('end', ok=True, text='')
  for name in '_PART_BYTES', '_LEAST_BYTES', '_PART_LINES':
    monkeypatch.setattr(metrics_file, name, 1000)
  follower = metrics_file.Follower(str(tmp_path), has_all=False)
  lines = follower.read_new()
  assert len(lines) < 1500 and lines == sorted(lines, key=lambda x: x['time'])
  kinds = [(x['life'], x['kind']) for x in lines if x['kind'] != 'sample']
  assert kinds == [
    *(('a', 'start'), ('a', 'evaluation'), ('a', 'end'), ('b', 'start')),
    *(('b', 'evaluation'), ('c', 'start'), ('c', 'evaluation'), ('c', 'end')),
  ]
  for life in 'abc':
    steps = [x['step'] for x in lines if x['life'] == life and 'state' in x]
    assert (steps[0], steps[-1]) == (0, 1999)
    gaps = [b - a for a, b in itertools.pairwise(steps)]
    assert max(gaps) < 20
  writer.write('event', event='late')
  assert [x['kind'] for x in follower.read_new()] == ['event']


def test_what_another_life_has_appended_stays(tmp_path, monkeypatch):
  """Ours did not fit on the disk; theirs came between write and look."""
  writer, other = make(tmp_path), make(tmp_path, life='b')
  writer.write('sample', state='serving')
  write = os.write

  def write_half(fd, data):
    monkeypatch.setattr(os, 'write', write)
    written = write(fd, data[: len(data) // 2])
    other.write('sample', state='serving')
    return written

  monkeypatch.setattr(os, 'write', write_half)
  writer.write('sample', state='serving')
  writer.write('end', ok=True, text='')
  lines = metrics_file.read(str(tmp_path))
  assert [(x['life'], x['kind']) for x in lines] == [
    *(('a', 'start'), ('a', 'sample'), ('b', 'start'), ('b', 'sample')),
    ('a', 'end'),
  ]
