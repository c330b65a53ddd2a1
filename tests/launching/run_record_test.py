"""What the log directory knows of its launcher."""

import contextlib
import functools
import json
import os
import signal
import threading
import time

import pytest

from distmnist.common import cli, owner, owner_file, signals
from distmnist.launching import jobs, run_record
from distmnist.launching.supervisor import restart_policy, sidecars, task_record
from distmnist.storage import disk
from distmnist.watching import metrics_file, stop_file, timeline
from tests.support.background import wait_until

TASKS = jobs.make_tasks(['h:1'], ['h:2', 'h:3'], [])


@pytest.fixture(autouse=True)
def _launch(monkeypatch):
  monkeypatch.setenv('DISTMNIST_LAUNCH_ID', 'l')


def open_record(tmp_path, sidecars=(), **fields):
  words = (f'--logdir={tmp_path}', '--model=cnn')
  job = jobs.Job(train_flags=words, given=words, **fields)
  return run_record.opened(job, 'local', sidecars)


def read(tmp_path):
  return [
    {k: v for k, v in line.items() if k not in ('time', 'life', 'process')}
    for line in metrics_file.iterate(str(tmp_path))
  ]


def test_starts_and_ends_of_tasks_are_written(tmp_path):
  records = task_record.TaskRecords()
  with open_record(tmp_path) as mine:
    mine.begin(TASKS, 'logs')
    mine.update(records)
    record = records['worker 1'] = task_record.TaskRecord(
      TASKS[2], restart_policy.Budget(restart_policy.NO_LIMITS)
    )
    record.attempt, record.is_running = 1, True
    mine.update(records)
    mine.update(records)
    record.is_running, record.code = False, -9
    mine.update(records)
    record.attempt, record.is_running = 2, True
    mine.update(records)
    mine.code = 3
  first, *events, last = read(tmp_path)
  assert first['tasks'] == ['ps 0', 'worker 0', 'worker 1']
  assert first['launcher'] == 'local' and '--model=cnn' in first['flags']
  assert first['logs_dir'].startswith('/') and first['launch'] == 'l'
  assert [(e['event'], e['about'], e.get('code')) for e in events] == [
    ('started', 'worker 1', None),
    ('ended', 'worker 1', -9),
    ('started', 'worker 1', None),
  ]
  assert events[1]['text'] == 'killed by SIGKILL'
  assert (last['kind'], last['ok'], last['code']) == ('end', False, 3)


def test_a_launcher_that_leaves_its_tasks_to_others_ends_nothing(tmp_path):
  with open_record(tmp_path) as mine:
    mine.begin(TASKS, 'logs')
    mine.leave()
  assert [(x['kind'], x.get('event')) for x in read(tmp_path)] == [
    ('start', None),
    ('event', 'left'),
  ]


def test_logs_inside_of_the_folder_are_found_where_it_is_moved(tmp_path):
  folder = tmp_path / 'run'
  (folder / 'logs').mkdir(parents=True)
  with open_record(folder) as mine:
    mine.begin(TASKS, f'{folder}/logs')
  assert read(folder)[0]['logs_dir'] == 'logs'


def test_a_wish_to_stop_comes_as_ctrl_c(tmp_path, monkeypatch):
  monkeypatch.setattr(stop_file, '_LOOK_SECS', 0.002)
  received = []
  with signals.waking(received) as wakeup, open_record(tmp_path) as mine:
    mine.begin(TASKS, 'logs')
    stop_file.write(str(tmp_path))
    wakeup.settimeout(60)
    wakeup.recv(1)
    assert stop_file.read(str(tmp_path))['is_taken']
    # A second one while the tasks save does not kill them.
    stop_file.write(str(tmp_path))
    wait_until(
      lambda: stop_file.read(str(tmp_path)).get('is_taken'), lambda: 'not taken'
    )
  assert received == [signal.SIGINT]
  events = [line.get('event') for line in read(tmp_path)]
  assert events.count('stopping') == 1


def test_a_launcher_that_loses_the_folder_says_so_and_ends_the_run(
  tmp_path, monkeypatch, logged
):
  monkeypatch.setattr(owner, 'TOUCH_SECS', 0.001)
  received = []
  with (
    signals.waking(received) as wakeup,
    pytest.raises(cli.LostError, match='was taken over by process .* of host'),
    open_record(tmp_path) as mine,
  ):
    mine.take(str(tmp_path))
    mine.take(str(tmp_path))  # Spark's launcher does it twice.
    mine.begin(TASKS, 'logs')
    other = json.dumps(owner_file.describe_self())
    place = tmp_path / 'distmnist-files' / 'launcher.json.00000002'
    assert disk.create(str(place), other.encode())
    wakeup.settimeout(60)
    wakeup.recv(1)
  assert received == [signal.SIGINT]
  assert logged[0].endswith(': stopping the tasks of this launch')
  assert not json.loads(other)['has_ended']


def test_the_folder_is_free_once_the_launch_is_over(tmp_path):
  with open_record(tmp_path) as mine:
    mine.take(str(tmp_path))
    assert owner.has_launcher(str(tmp_path))
  assert not owner.has_launcher(str(tmp_path))


DELIVERING = (
  'import signal, time; signal.signal(15, signal.SIG_IGN);'
  ' print("here", flush=True); time.sleep(60)'
)


@pytest.mark.slow
@pytest.mark.parametrize('signum', [signal.SIGINT, signal.SIGTERM])
def test_a_signal_at_the_end_kills_what_runs_beside_and_nothing_else(
  tmp_path, signum
):
  processes = []

  @contextlib.contextmanager
  def running(name, _, logs_dir):
    argv = ['-c', DELIVERING]
    with sidecars.running(name, argv, logs_dir) as process:
      processes.append(process)
      yield

  both = [functools.partial(running, name) for name in 'ab']
  start = time.monotonic()
  with open_record(tmp_path, both) as mine:
    mine.begin(TASKS, str(tmp_path))
    for name in 'ab':
      log = tmp_path / f'{name}.log'
      wait_until(log.read_text, lambda: 'no line')
    mine.code = 3
    interrupt = threading.Timer(0.3, os.kill, (os.getpid(), signum))
    interrupt.start()
  assert [process.returncode for process in processes] == [-signal.SIGKILL] * 2
  assert time.monotonic() < start + 45
  assert mine.code == read(tmp_path)[-1]['code'] == 3


@pytest.mark.parametrize('why', ['SIGINT', 'No space left'])
def test_traces_that_cannot_be_merged_end_no_run(
  tmp_path, monkeypatch, logged, why
):
  def merge(logdir):
    if why == 'SIGINT':
      os.kill(os.getpid(), signal.SIGINT)
      threading.Event().wait(60)
    raise OSError(why)

  monkeypatch.setattr(timeline, 'merge', merge)
  with open_record(tmp_path) as mine:
    mine.begin(TASKS, 'logs')
    mine.code = 0
  assert logged == [
    f'no timeline.json of {tmp_path} ({why}): python -m distmnist.report '
    f'--logdir={tmp_path} makes it'
  ]


def test_a_store_takes_no_lines():
  assert run_record.find_folder(['--logdir=s3://bucket/run']) is None
  assert run_record.find_folder(['--model=cnn']) is None
  assert run_record.find_folder(['--logdir=/run']) == '/run'


@pytest.mark.parametrize('dry_run', [True, False])
def test_nothing_is_written_before_the_folder_is_ours(tmp_path, dry_run):
  with (
    pytest.raises(ValueError),
    open_record(tmp_path, dry_run=dry_run) as mine,
  ):
    if dry_run:
      mine.begin(TASKS, 'logs')
    raise ValueError
  assert list(tmp_path.iterdir()) == []
