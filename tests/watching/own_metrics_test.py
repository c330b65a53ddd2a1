"""What a task says of itself, the thread that samples, and each line."""

import contextlib
import json
import os
import pathlib
import queue
import subprocess
import sys
import threading
import time
import types

import jsonschema
import pytest

from distmnist.watching import metrics_file, own_metrics
from tests.support.paths import PYTHONPATH

SCHEMA = pathlib.Path(own_metrics.__file__).with_name('metrics.schema.json')
# In a process of its own: gRPC pings on the connections of other tests count.
_SEND = """
import json, socket, time
from distmnist.watching import own_metrics

with socket.create_server(('127.0.0.1', 0)) as listener:
  client = socket.create_connection(listener.getsockname())
  server, _ = listener.accept()
with client, server:
  mine = own_metrics.Usage()
  client.sendall(bytes(1000))
  while len(server.recv(1000, socket.MSG_PEEK)) < 1000:
    pass
  deadline = time.monotonic() + 10
  found = mine.look()
  # Sent counts once it was acknowledged.
  while found['sent_bytes'] < 1000 and time.monotonic() < deadline:
    found = mine.look()
print(json.dumps(found))
"""


@pytest.fixture
def make(tmp_path):
  made = []

  def make(every_secs=60.0):
    made.append(own_metrics.Sampler(str(tmp_path), 'ps 0', 'a', every_secs))
    made[-1].collect = lambda: {'state': 'serving'}
    return made[-1]

  yield make
  for each in made:
    each.close()


def read(tmp_path):
  return list(metrics_file.iterate(str(tmp_path)))


@pytest.mark.slow
def test_all_lines_are_as_the_schema_says(make, tmp_path):
  mine = make().start()
  mine.write('event', event='wait', text='no step for 10 s')
  mine.write('evaluation', split='test', step=3, metrics={'accuracy': 0.5})
  mine.close()
  lines = read(tmp_path)
  assert [line['kind'] for line in lines] == [
    *('start', 'sample', 'event', 'evaluation', 'sample', 'end')
  ]
  schema = json.loads(SCHEMA.read_text())
  jsonschema.Draft202012Validator.check_schema(schema)
  for line in lines:
    jsonschema.validate(line, schema)
  assert lines[-1]['ok'] and lines[-1]['text'] == ''
  with pytest.raises(jsonschema.ValidationError):
    jsonschema.validate(lines[1] | {'unknown': 1}, schema)


@pytest.mark.slow
def test_a_task_names_its_launch(make, tmp_path, monkeypatch):
  monkeypatch.setenv('DISTMNIST_LAUNCH_ID', 'l')
  make().start().close()
  start, *_ = read(tmp_path)
  assert start['launch'] == 'l'
  jsonschema.validate(start, json.loads(SCHEMA.read_text()))


def test_samples_come_by_themselves(make, monkeypatch):
  monkeypatch.setattr(own_metrics, 'LEAST_SECS', 0.001)
  lines = queue.Queue()
  mine = make(every_secs=0.001)
  mine.sinks.append(lines.put)
  mine.start()
  kinds = [lines.get(timeout=60)['kind'] for _ in range(3)]
  assert kinds == ['sample'] * 3


def test_the_samples_of_a_worker_come_as_it_asks(tmp_path, monkeypatch):
  clock = types.SimpleNamespace(now=0.0)
  seen = queue.Queue()
  metrics = own_metrics.OwnMetrics()
  with metrics.kept(str(tmp_path), 'worker 0', 'a', 3600.0, sinks=[seen.put]):
    metrics.collect_by(lambda: {'state': 'training', 'step': clock.now})
    seen.get(timeout=60)
    clock.monotonic = lambda: 1e9 + 3600 * clock.now
    clock.time, clock.process_time = time.time, time.process_time
    monkeypatch.setattr(own_metrics, 'time', clock)
    for clock.now in 1, 1.2, 1.7, 2, 2.4, 2.8, 3.1:
      metrics.sample_if_due()
      if clock.now in (1, 2, 3.1):
        assert seen.get(timeout=60)['step'] == clock.now
    assert seen.empty()  # There was one lately.
    metrics.sample()
    assert seen.get(timeout=60)['step'] == 3.1


def test_each_plain_line_comes_with_a_sample(make):
  """Also soon after one that came by itself."""
  mine = make(every_secs=60.0)
  mine.write('sample')
  assert not mine.is_due()
  mine._last_asked -= 60.0
  mine.sample()
  assert mine.is_due()


def test_from_one_sample_to_the_next_it_may_be_centuries(make):
  # A warning of a thread that fails is an error of the test.
  mine = make(every_secs=1e10).start()
  mine._thread.join(0.05)
  assert mine._thread.is_alive()


def test_nothing_comes_after_the_end(make, tmp_path):
  mine = make().start()
  mine.close('no room')
  mine.write('event', event='wait')
  mine.close()
  assert read(tmp_path)[-1]['text'] == 'no room'
  assert not read(tmp_path)[-1]['ok']


def test_what_changes_amid_a_sample_is_left_to_the_next(make, tmp_path):
  mine = make()
  first = threading.Event()
  mine.sinks.append(lambda line: first.set())
  mine.start()
  assert first.wait(60)

  def collect():
    raise RuntimeError('dictionary changed size during iteration')

  mine.collect = collect
  mine.close()
  assert [line['kind'] for line in read(tmp_path)] == [
    *('start', 'sample', 'end')
  ]


@pytest.fixture
def hung_file(tmp_path):
  """Yields a metrics.jsonl that takes no more, like one on a hung disk."""
  path = tmp_path / 'metrics' / 'ps_0' / 'metrics.jsonl'
  path.parent.mkdir(parents=True)
  os.mkfifo(path)
  fd = os.open(path, os.O_RDWR | os.O_NONBLOCK)
  with contextlib.suppress(BlockingIOError):
    while True:
      os.write(fd, bytes(4096))
  yield path
  os.read(fd, 1 << 20)  # The thread that hangs there ends.
  os.close(fd)


def test_nobody_waits_for_a_disk_that_hangs(
  make, hung_file, monkeypatch, logged
):
  monkeypatch.setattr(own_metrics, '_END_SECS', 0.2)
  monkeypatch.setattr(own_metrics, '_MAX_LINES', 3)
  mine = make().start()
  for _ in range(10):  # What is too much is dropped.
    mine.write('event', event='wait')
  mine.close()
  [line] = logged
  assert line.startswith(f'{hung_file} takes no lines')


def test_of_a_task_that_fails_the_end_says_why(tmp_path):
  metrics = own_metrics.OwnMetrics()
  with (
    pytest.raises(ValueError),
    metrics.kept(str(tmp_path), 'ps 0', 'a', 60, lambda: {'state': 'serving'}),
  ):
    metrics.write('event', event='wait', text='x')
    raise ValueError('a  long\nstory')
  last = read(tmp_path)[-1]
  assert (last['ok'], last['text']) == (False, 'a long story')


@pytest.mark.slow
def test_bytes_are_counted_since_the_first_look():
  program = subprocess.run(
    [sys.executable, '-c', _SEND],
    env={**os.environ, 'PYTHONPATH': PYTHONPATH},
    stdout=subprocess.PIPE,
    check=True,
    timeout=200,
  )
  found = json.loads(program.stdout)
  assert found['sent_bytes'] == found['received_bytes'] == 1000
  assert found['received_bytes_per_sec'] >= 0


def test_memory_and_time_are_those_of_this_process():
  mine = own_metrics.Usage()
  sum(range(10**6))
  found = mine.look()
  assert 0 < found['cpu_secs'] <= time.process_time()
  assert found['cpu_cores'] > 0
  assert found['rss_bytes'] > 1e6


def test_without_a_logdir_nothing_is_kept(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  metrics = own_metrics.OwnMetrics()
  with metrics.kept(None, 'ps 0', 'a', 60) as mine:
    assert mine is None
    metrics.write('event', event='wait')
    metrics.collect_by(dict)
  assert list(tmp_path.iterdir()) == []


def test_what_is_said_is_kept_until_the_end(tmp_path):
  metrics = own_metrics.OwnMetrics()
  with metrics.kept(str(tmp_path), 'worker 0', 'a', 60) as mine:
    metrics.collect_by(lambda: {'state': 'training', 'step': 7})
    metrics.write('event', event='recovered', step=3)
    mine.ending = 'stopped'
  metrics.write('event', event='wait')
  lines = list(metrics_file.iterate(str(tmp_path)))
  assert [line.get('event') for line in lines].count('recovered') == 1
  assert lines[-2]['step'] == 7
  assert lines[-1]['ok'] and lines[-1]['text'] == 'stopped'
