"""The last lines of a run and its exit code, of a group that is made up."""

import os

import pytest

from distmnist.common import console, files
from distmnist.launching import jobs
from distmnist.launching.screen import log_view, task_logs
from distmnist.launching.supervisor import (
  endings,
  failures,
  restart_policy,
  task_record,
)

PS, CHIEF, WORKER = jobs.make_tasks(['x:1'], ['x:2', 'x:3'], [])
SAID = 'distmnist.launch: '


@pytest.fixture(autouse=True)
def _printed():
  console.print_logs(log_view.print_line)


class Group:
  """In place of a task_group.TaskGroup that has ended."""

  def __init__(self, failure=None, lines=(), codes=()):
    self.failure = failure
    self._lines = list(lines)
    self.records = task_record.TaskRecords()
    for task, code in codes:
      record = task_record.TaskRecord(
        task, restart_policy.Budget(restart_policy.NO_LIMITS)
      )
      record.code = code
      self.records[task.name] = record

  def last_lines(self, task, num_lines=10):
    return self._lines[-num_lines:]


def report(group):
  return endings.report_failure(group.failure, group, '/logs')


def test_a_failure_is_named_after_the_last_lines_of_its_log(capsys):
  failure = failures.Failure(WORKER, -9, num_restarts=2)
  assert report(Group(failure, ['one', 'two'])) == 137
  assert capsys.readouterr().err.splitlines() == [
    f'{SAID}the last lines of worker 1:',
    '  | one',
    '  | two',
    f'{SAID}error: worker 1 (x:3) failed after 2 restarts: killed by SIGKILL;'
    ' log: /logs/worker_1.log',
  ]


def test_a_failure_on_a_full_disk_says_so(capsys, monkeypatch):
  monkeypatch.setattr(files, 'is_full', lambda folder: folder == '/logs')
  assert report(Group(failures.Failure(CHIEF, 1), ['step 2'])) == 1
  assert capsys.readouterr().err.splitlines()[-1] == (
    f'{SAID}error: worker 0 (x:2) failed first: exit code 1, and the disk of'
    ' /logs is full: make room there; log: /logs/worker_0.log'
  )


@pytest.mark.parametrize('program', ['distmnist.train', 'own_loop.py'])
def test_an_error_that_says_all_in_a_line_is_not_said_twice(capsys, program):
  line = f'{program}: error: no such folder'
  assert report(Group(failures.Failure(CHIEF, 1), [line])) == 1
  assert capsys.readouterr().err == (
    f'{SAID}error: worker 0 (x:2) failed first: no such folder;'
    ' log: /logs/worker_0.log\n'
  )


def test_a_ps_that_left_with_a_worker_names_the_worker(capsys):
  group = Group(
    failures.Failure(PS, 3), ['worker 1 has ended'], codes=[(WORKER, 2)]
  )
  assert report(group) == 2
  assert 'error: worker 1 (x:3) failed first' in capsys.readouterr().err


KILLED = (
  f'{SAID}worker 0 was killed by SIGKILL before it said that all is saved: what'
  ' was trained since its newest checkpoint may be lost'
)


@pytest.mark.parametrize(
  ('chief_code', 'code', 'more'),
  [(143, 143, []), (75, 75, ['not saved']), (-9, 75, [KILLED])],
)
def test_a_signal_is_named(capsys, chief_code, code, more):
  codes = [(CHIEF, chief_code), (WORKER, 75)]  # What a worker loses is little.
  group = Group(lines=['not saved'], codes=codes)
  assert endings.report_signal(group, 15, '/logs') == code
  assert capsys.readouterr().err.splitlines() == [
    f'{SAID}stopped by SIGTERM, logs in /logs',
    *more,
  ]


@pytest.mark.parametrize('code', [143, 75])
def test_the_logs_that_nobody_asked_for_stay_only_if_something_is_lost(
  tmp_path, monkeypatch, capsys, code
):
  monkeypatch.setattr('tempfile.tempdir', str(tmp_path))
  folder = task_logs.make_logs_dir(None, None)
  group = Group(lines=['not saved'], codes=[(CHIEF, code)])
  assert endings.report_signal(group, 15, folder) == code
  assert os.path.exists(folder) == (code == 75)
  more = ['not saved', f'{SAID}logs in {folder}'] if code == 75 else []
  said = capsys.readouterr().err.splitlines()
  assert said == [f'{SAID}stopped by SIGTERM', *more]
  task_logs.remove_if_temporary(folder)


def test_the_exit_code_stays_where_nothing_can_be_printed(monkeypatch):
  group = Group(lines=['not saved'], codes=[(CHIEF, 75)])
  failure = Group(failures.Failure(WORKER, -9), ['one'], codes=[(CHIEF, 75)])
  with open('/dev/full', 'w', buffering=1) as full:
    monkeypatch.setattr('sys.stderr', full)
    assert endings.report_signal(group, 15, '/logs') == 75
    assert report(failure) == 137
    os.dup2(os.open(os.devnull, os.O_WRONLY), full.fileno())


def test_a_signal_before_the_chief_has_begun_is_named(capsys):
  assert endings.report_signal(Group(), 15, '/logs') == 143
  assert 'stopped by SIGTERM' in capsys.readouterr().err


def test_what_had_to_be_killed_is_named(capsys):
  endings.say_killed([WORKER], 15, is_cut_short=False)
  assert capsys.readouterr().err == (
    f'{SAID}worker 1 (x:3) did not exit after SIGTERM: killed\n'
  )
  endings.say_killed([WORKER], 2, is_cut_short=True)
  assert capsys.readouterr().err == (
    f'{SAID}worker 1 (x:3) killed, as another signal came\n'
  )


def test_a_failure_can_be_told_without_its_error_line(capsys):
  group = Group(failures.Failure(WORKER, -9), ['one'])
  text, code = endings.show_failure(group.failure, group, '/logs')
  assert code == 137
  assert text == (
    'worker 1 (x:3) failed first: killed by SIGKILL; log: /logs/worker_1.log'
  )
  assert capsys.readouterr().err == (
    f'{SAID}the last lines of worker 1:\n  | one\n'
  )
