"""metrics.jsonl: whole lines, appended over lives, as the schema has them."""

import itertools
import json
import os
import pathlib

import pytest

from distmnist.watching import metrics_file, metrics_line, run_state


def make(folder, task='ps 0', life='a'):
  return metrics_file.Writer(str(folder), task, life, host='h', pid=1)


def append(folder, lines, task='ps 0'):
  """Writes lines a second apart, at once: a Writer takes long for thousands."""
  own = {'task': task, 'life': 'a', 'kind': 'sample', 'state': 'training'}
  path = metrics_file.path_of(str(folder), task)
  os.makedirs(os.path.dirname(path), exist_ok=True)
  with open(path, 'ab') as file:
    found = enumerate(lines)
    file.write(
      metrics_line.format_lines(own | {'time': 2e9 + i} | x for i, x in found)
    )
  return path


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
  fields = {'loss': float('nan'), 'metrics': {'a': 1 / 3, 'b': float('inf')}}
  make(tmp_path).write('sample', **fields)
  line = read_lines(tmp_path)[1]
  assert line['loss'] is None
  assert line['metrics'] == {'a': 0.3333333, 'b': None}


def test_a_line_that_was_cut_off_is_left_alone(tmp_path):
  make(tmp_path).write('sample', state='serving')
  path = tmp_path / 'metrics' / 'ps_0' / 'metrics.jsonl'
  path.write_bytes(path.read_bytes() + b'{"kind": "sam')
  make(tmp_path, life='b').write('sample', state='serving')
  lives = [line['life'] for line in metrics_file.iterate(str(tmp_path))]
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


def test_half_a_line_is_none_yet(tmp_path):
  assert list(metrics_file.iterate(str(tmp_path))) == []
  make(tmp_path).write('sample', state='serving')
  path = tmp_path / 'metrics' / 'ps_0' / 'metrics.jsonl'
  with open(path, 'a') as file:
    file.write('{"kind": "end", "time": 1, ')
    file.flush()
    assert len(list(metrics_file.iterate(str(tmp_path)))) == 2
    file.write('"task": "ps 0", "life": "a", ')
    file.write('"ok": true, "text": ""}\nnonsense\n[1]\n')
  kinds = [line['kind'] for line in metrics_file.iterate(str(tmp_path))]
  assert kinds == ['start', 'sample', 'end']


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


@pytest.mark.slow
def test_no_file_grows_for_ever(tmp_path, monkeypatch):
  monkeypatch.setattr(metrics_file, 'MAX_BYTES', 10_000)
  clock = itertools.count(1.7e9)
  monkeypatch.setattr(metrics_file.time, 'time', lambda: next(clock))
  num_steps = 300
  for life in 'ab':
    writer = metrics_file.Writer(str(tmp_path), 'ps 0', life, host='h', pid=1)
    for step in range(num_steps):
      fields = {'state': 'serving', 'step': step}
      writer.write('sample', **fields)
    writer.write('evaluation', split='test', step=num_steps, metrics={})
  path = metrics_file.path_of(str(tmp_path), 'ps 0')
  assert os.path.getsize(path) <= 10_000 + 200
  lines = list(metrics_file.iterate(str(tmp_path)))
  assert [x['life'] for x in lines if x['kind'] == 'start'] == ['a', 'b']
  kept = [x for x in lines if x['kind'] == 'sample']
  assert kept[-1]['step'] == num_steps - 1
  ends = [i for i, x in enumerate(lines) if x['kind'] == 'evaluation']
  assert [lines[i - 1]['step'] for i in ends] == [num_steps - 1] * 2
  last = metrics_file.read_last_samples(str(tmp_path), 'ps', [])
  assert {x['life']: x['step'] for x in last} == dict.fromkeys(
    'ab', num_steps - 1
  )
  # The curves keep their shape, from their beginning on.
  gaps = [b['time'] - a['time'] for a, b in itertools.pairwise(kept)]
  assert len(kept) > 40 and max(gaps) < 4 * 2 * num_steps / len(kept)


@pytest.mark.slow
@pytest.mark.parametrize(
  'jump', [60 * 86400, -7200], ids=['a pause of 60 days', 'a clock set back']
)
def test_half_of_the_samples_stay_whatever_the_clock_did(
  tmp_path, monkeypatch, jump
):
  times = [i + jump * (i > 5000) for i in range(10_000, 20_000)]
  path = append(tmp_path, [{'step': i, 'time': i} for i in times])
  with open(path, 'a') as file:
    file.write('{"kind": "sample", "time": 17\n')  # Cut off by a full disk.
  metrics_file._thin(path)
  with open(path) as file:
    assert 4000 < sum(line.endswith('}\n') for line in file) < 6000


@pytest.mark.slow
def test_samples_are_thinned_among_means(tmp_path, monkeypatch):
  clock = itertools.count(1.7e9)
  monkeypatch.setattr(metrics_file.time, 'time', lambda: next(clock))
  writer = make(tmp_path, 'worker 0')
  for step in range(200):
    writer.write('sample', state='training', step=step)
    writer.write('means', step=step, epoch=step + 1, steps=1, metrics={})
  metrics_file._thin(metrics_file.path_of(str(tmp_path), 'worker 0'))
  lines = read_lines(tmp_path, 'worker_0')
  samples = [x for x in lines if x['kind'] == 'sample']
  assert 80 < len(samples) < 120 and samples[-1]['step'] == 199
  assert [x['step'] for x in lines if x['kind'] == 'means'] == [*range(200)]
  assert lines == sorted(lines, key=lambda line: line['time'])


def test_means_leave_the_state_as_it_is(tmp_path):
  writer = make(tmp_path, 'worker 0')
  writer.write('sample', state='training', step=1)
  path = tmp_path / 'metrics' / 'worker_0' / 'state.jsonl'
  inode = path.stat().st_ino
  writer.write('means', step=1, epoch=1, steps=1, metrics={})
  assert path.stat().st_ino == inode
  other = make(tmp_path, 'worker 0', 'b')
  other.write('means', step=1, epoch=1, steps=1, metrics={})
  lines, _ = metrics_file.read_state(str(tmp_path))
  assert [(x['life'], x['kind']) for x in lines] == [('b', 'start')]


# All lines have the same fields: some are cut off at an inner brace.
_CUTS = (5, 40, -40, -3, -2, -1)


@pytest.mark.parametrize('cut', _CUTS)
@pytest.mark.parametrize('is_last', [True, False])
def test_a_line_that_is_cut_off_costs_that_line_alone(tmp_path, cut, is_last):
  samples = [{'step': i, 'staleness': {'0': i}} for i in range(1000)]
  path = pathlib.Path(append(tmp_path, samples, 'worker 0'))
  whole = path.read_bytes()
  last = whole[whole.rfind(b'\n', 0, -1) + 1 : -1]
  path.write_bytes(whole + last[:cut])
  if not is_last:
    make(tmp_path, 'worker 0', 'b').write('sample', state='training', step=0)

  def find_last():
    return {
      line['life']: line['step']
      for line in metrics_file.read_last_samples(str(tmp_path), 'worker', [])
    }

  expected = {'a': 999} | ({} if is_last else {'b': 0})
  assert find_last() == expected
  metrics_file._thin(path)
  assert find_last() == expected


def test_of_a_large_file_an_evenly_spread_part_can_be_read(tmp_path):
  written = []
  for life in 'abc':
    written.append({'life': life, 'kind': 'start'})
    written += [{'life': life, 'step': step} for step in range(2000)]
    found = {'kind': 'evaluation', 'split': 'test', 'metrics': {}}
    written.append({'life': life, 'step': 1999, **found})
    if life != 'b':  # It is killed.
      written.append({'life': life, 'kind': 'end', 'ok': True, 'text': ''})
  append(tmp_path, written)
  lines = list(metrics_file.iterate(str(tmp_path), num_samples=600))
  assert len(lines) < 800 and lines == sorted(lines, key=lambda x: x['time'])
  kinds = [(x['life'], x['kind']) for x in lines if x['kind'] != 'sample']
  assert kinds == [
    *(('a', 'start'), ('a', 'evaluation'), ('a', 'end'), ('b', 'start')),
    *(('b', 'evaluation'), ('c', 'start'), ('c', 'evaluation'), ('c', 'end')),
  ]
  for life in 'abc':
    mine = [x for x in lines if x['life'] == life]
    steps = [x['step'] for x in mine if x['kind'] == 'sample']
    assert steps[0] < 20 and steps[-1] == 1999
    assert max(b - a for a, b in itertools.pairwise(steps)) < 20


def describe(lines):
  """Returns all that a RunState says of lines."""
  state = run_state.RunState().take(lines)
  has_none = state.has_no_launcher
  return state.make_rows(2e9), state.evaluations, state.step, has_none


def write_run(folder, name):
  """Yields after each line of a run with a launcher, kills and restarts."""
  launcher = metrics_file.Writer(
    *(str(folder), 'launcher', name), tasks=['ps 0', 'worker 0'], launch=name
  )

  def tell(event, **fields):
    launcher.write('event', event=event, about='worker 0', **fields)

  fields = {'state': 'training', 'unit': 'images', 'sent_bytes': 5}
  for attempt in 1, 2, 3:
    tell('started', attempt=attempt)
    worker = metrics_file.Writer(
      *(str(folder), 'worker 0', f'{name}{attempt}'),
      **{'attempt': attempt, 'launch': name},
    )
    worker.write('sample', state='starting', step=None, examples=0)
    for i in range(1, 4):
      counts = {'0': i, f'{attempt}': 2}
      worker.write(
        *('sample',), **fields, step=i, examples=100 * i, staleness=counts
      )
      yield
    worker.write('event', event='wait', text='for ps 0')
    metrics = {'accuracy': attempt / 10}
    worker.write('evaluation', split='validation', step=i, metrics=metrics)
    yield
    if attempt < 3:
      tell('ended', code=-9, text='killed')
      yield
  worker.write('end', ok=True, text='')
  tell('ended', code=0, text='')
  launcher.write('end', ok=True, code=0, text='')
  yield


@pytest.mark.slow
def test_the_state_says_what_all_lines_say_and_stays_short(
  tmp_path, monkeypatch
):
  clock = itertools.count(1.7e9)
  monkeypatch.setattr(metrics_file.time, 'time', lambda: next(clock))
  for _ in write_run(tmp_path, 'first'):
    lines, written = metrics_file.read_state(str(tmp_path))
    assert describe(lines) == describe(metrics_file.iterate(str(tmp_path)))
    assert len(lines) < 12 and len(written) >= 1
  for _ in write_run(tmp_path, 'resumed'):
    lines, _ = metrics_file.read_state(str(tmp_path))
    assert describe(lines) == describe(metrics_file.iterate(str(tmp_path)))


@pytest.mark.parametrize('step_secs', [1, -1])
def test_a_process_that_wakes_after_another_took_its_place_has_no_say(
  tmp_path, monkeypatch, step_secs
):
  clock = itertools.count(1.7e9, step_secs)  # That of a host may be wrong.
  monkeypatch.setattr(metrics_file.time, 'time', lambda: next(clock))
  old = make(tmp_path)
  old.write('sample', state='serving')
  new = make(tmp_path, life='b')
  new.write('sample', state='serving')
  old.write('end', ok=False, text='suspended')
  new.write('sample', state='serving')
  lines, _ = metrics_file.read_state(str(tmp_path))
  assert {line['life'] for line in lines} == {'b'}


def test_the_end_of_a_file_that_was_copied_alone_says_how_things_stand(
  tmp_path,
):
  make(tmp_path).write('sample', state='serving', step=0)
  append(tmp_path, [{'step': step} for step in range(2000)])
  (tmp_path / 'metrics' / 'ps_0' / 'state.jsonl').unlink()
  lines, _ = metrics_file.read_state(str(tmp_path))
  assert (lines[0]['kind'], lines[-1]['step']) == ('start', 1999)
  assert len(lines) < 1000


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
  lines = list(metrics_file.iterate(str(tmp_path)))
  assert [(x['life'], x['kind']) for x in lines] == [
    *(('a', 'start'), ('a', 'sample'), ('b', 'start'), ('b', 'sample')),
    ('a', 'end'),
  ]
