import errno
import os
import shutil

import pytest

from distmnist.common import cli
from distmnist.launching import jobs
from distmnist.launching.screen import task_logs
from distmnist.storage import process_tag


def test_logs_go_next_to_what_train_writes(tmp_path):
  path = task_logs.make_logs_dir(None, str(tmp_path / 'run'))
  assert path == str(tmp_path / 'run' / 'logs')
  assert os.path.isdir(path)


def test_without_a_folder_the_logs_go_to_a_new_one(tmp_path, monkeypatch):
  monkeypatch.setattr('tempfile.tempdir', str(tmp_path))
  paths = {task_logs.make_logs_dir(None, None) for _ in range(2)}
  assert len(paths) == 2
  assert all(os.path.isdir(path) for path in paths)
  for path in paths:
    task_logs.remove_if_temporary(path)
  assert not any(os.path.exists(path) for path in paths)


def test_of_launchers_that_are_gone_the_last_logs_are_kept(
  tmp_path, monkeypatch
):
  monkeypatch.setattr('tempfile.tempdir', str(tmp_path))
  machine, pid, start = process_tag.make_tag().split('-')
  dead = f'distmnist_logs_{machine}-{pid}-{int(start) - 1}'
  kept = {'distmnist_logs_01234567-1-1_x', 'other', f'{dead}_9', f'{dead}_8'}
  names = kept | {f'{dead}_{i}' for i in range(8)}
  for name in names:
    (tmp_path / name).mkdir()
    (tmp_path / name / 'worker_0.log').write_text('')
    age = int(name[-1]) if name[-1].isdigit() else 0
    os.utime(tmp_path / name, (age, age))
  mine = os.path.basename(task_logs.make_logs_dir(None, None))
  assert {*os.listdir(tmp_path)} == kept | {f'{dead}_7', mine}
  task_logs.remove_if_temporary(str(tmp_path / mine))


def test_a_folder_that_was_asked_for_stays(tmp_path):
  path = task_logs.make_logs_dir(str(tmp_path / 'distmnist_logs_x'), None)
  task_logs.remove_if_temporary(path)
  assert os.path.isdir(path)


def test_a_folder_that_cannot_be_is_a_usage_error(tmp_path):
  (tmp_path / 'file').write_text('')
  said = (
    r'--logdir: no folder for the logs: .*; --logs_dir may name another folder'
  )
  with pytest.raises(cli.UsageError, match=said):
    task_logs.make_logs_dir(None, str(tmp_path / 'file'))


def test_each_run_has_fresh_logs_and_the_last_ones_are_kept(tmp_path):
  cluster = jobs.make_tasks(['x:1'], ['x:2'], [])
  log = tmp_path / 'worker_0.log'
  for run in range(6):
    task_logs.rotate(str(tmp_path), cluster)
    assert not log.exists()
    log.write_text(f'run {run}\n')
  assert {p.name: p.read_text() for p in tmp_path.iterdir()} == {
    'worker_0.log': 'run 5\n',
    'worker_0.log.1': 'run 4\n',
    'worker_0.log.2': 'run 3\n',
    'worker_0.log.3': 'run 2\n',
  }


def test_who_still_writes_goes_on_with_the_old_log(tmp_path):
  cluster = jobs.make_tasks(['x:1'], ['x:2'], [])
  log = tmp_path / 'worker_0.log'
  with open(log, 'a') as file:
    print('first', file=file, flush=True)
    task_logs.rotate(str(tmp_path), cluster)
    print('last', file=file, flush=True)
  assert (tmp_path / 'worker_0.log.1').read_text() == 'first\nlast\n'
  assert not log.exists()


def test_a_task_restarts_though_its_logs_were_removed(tmp_path):
  (task,) = jobs.make_tasks([], ['x:1'], [])
  logs = task_logs.AttemptLogs(str(tmp_path / 'logs'))
  logs.begin(task)
  shutil.rmtree(tmp_path / 'logs')
  assert logs.last_lines(task) == []
  path = logs.begin(task, 'restart 1 of 2')
  with open(path, 'a') as log:
    log.write('one\n')
  assert logs.last_lines(task) == ['one']
  shutil.rmtree(tmp_path / 'logs')
  logs.remove(task)


def test_a_task_restarts_on_a_full_disk(tmp_path, monkeypatch):
  (task,) = jobs.make_tasks([], ['x:1'], [])
  logs = task_logs.AttemptLogs(str(tmp_path))
  path = logs.begin(task)

  def append(*_):
    raise OSError(errno.ENOSPC, 'No space left on device')

  monkeypatch.setattr(task_logs, 'append', append)
  assert logs.begin(task, 'restart 1 of 2') == path
  monkeypatch.undo()
  assert logs.last_lines(task) == []


def test_lines_of_an_earlier_attempt_are_not_the_last_ones(tmp_path):
  (task,) = jobs.make_tasks([], ['x:1'], [])
  logs = task_logs.AttemptLogs(str(tmp_path))
  path = logs.begin(task)
  with open(path, 'a') as log:
    log.write('cut')
  assert logs.last_lines(task) == ['cut']
  assert logs.begin(task, 'restart 1 of 2') == path
  assert logs.last_lines(task) == []
  with open(path, 'a') as log:
    log.write('one\ntwo\n')
  assert logs.last_lines(task) == ['one', 'two']
  assert logs.last_lines(task, 1) == ['two']
  logs.remove(task)
  assert list(tmp_path.iterdir()) == []
