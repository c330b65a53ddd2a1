"""One timeline of all tasks: each row once, none with two things at once."""

import json

from distmnist.watching import timeline


def make(task, kind, start, micros=10, name='x'):
  return {
    **{'task': task, 'kind': kind, 'name': name, 'start': start},
    **{'micros': micros, 'args': {'op': name}},
  }


EVENTS = [
  make('worker 10', 'pull', 1005),
  make('worker 2', 'compute', 1020, 50),
  make('ps 0', 'push', 1000),
  make('ps 0', 'push', 1005, 3),
  make('ps 0', 'push', 1010),
]


def rows_of(trace):
  """Returns {(task, row): list of (start, micros)}."""
  names, found = {}, {}
  for event in trace['traceEvents']:
    if event['ph'] == 'M' and 'name' in event['args']:
      key = event['pid'], event['tid'], event['name']
      assert key not in names  # Each row once.
      names[key] = event['args']['name']
  for event in trace['traceEvents']:
    if event['ph'] == 'X':
      task = names[event['pid'], 0, 'process_name']
      row = names[event['pid'], event['tid'], 'thread_name']
      found.setdefault((task, row), []).append((event['ts'], event['dur']))
  return found


def test_each_kind_of_a_task_has_a_row_and_what_overlaps_another():
  trace = json.loads(json.dumps(timeline.lay_out(EVENTS)))
  assert rows_of(trace) == {
    ('ps 0', 'push'): [(0, 10), (10, 10)],
    ('ps 0', 'push 2'): [(5, 3)],
    ('worker 2', 'compute'): [(20, 50)],
    ('worker 10', 'pull'): [(5, 10)],
  }
  order = [
    event['args']['name']
    for event in trace['traceEvents']
    if event['name'] == 'process_name'
  ]
  assert order == ['ps 0', 'worker 2', 'worker 10']
  colours = {e['cat']: e['cname'] for e in trace['traceEvents'] if 'cat' in e}
  assert len(set(colours.values())) == 3


def test_a_trace_can_be_read_again():
  found = timeline.read(json.loads(json.dumps(timeline.lay_out(EVENTS))))
  key = str
  assert sorted(found, key=key) == sorted(EVENTS, key=key)
  assert timeline.read(timeline.lay_out([])) == []


def test_the_traces_of_all_workers_become_one(tmp_path):
  assert timeline.merge(str(tmp_path)) is None
  for i, start in enumerate((1000, 1004)):
    (tmp_path / 'metrics' / f'worker_{i}').mkdir(parents=True)
    trace = timeline.lay_out(
      [make(f'worker {i}', 'compute', start), make('ps 0', 'push', start)]
    )
    path = tmp_path / 'metrics' / f'worker_{i}' / 'trace_7.json'
    path.write_text(json.dumps(trace))
  (tmp_path / 'metrics' / 'worker_1' / 'trace_8.json').write_text(
    '{"traceEvents": ['
  )
  path = timeline.merge(str(tmp_path))
  assert path == f'{tmp_path}/timeline.json'
  with open(path) as file:
    assert rows_of(json.load(file)) == {
      ('ps 0', 'push'): [(0, 10)],
      ('ps 0', 'push 2'): [(4, 10)],
      ('worker 0', 'compute'): [(0, 10)],
      ('worker 1', 'compute'): [(4, 10)],
    }
