"""Lines go to a logger once each, to the end of the run."""

import signal
import subprocess
import sys
import threading
import types

import pytest

from distmnist import forward
from distmnist.common import cli
from distmnist.watching import metrics_file, watched_run
from tests.support.paths import REPO


class Logger:
  def __init__(self):
    self.rows, self.is_good = [], None

  def log(self, *row):
    self.rows.append(row)

  def close(self, ok):
    self.is_good = ok


@pytest.fixture
def worker(tmp_path):
  worker = metrics_file.Writer(str(tmp_path), 'worker 0', 'a', host='h', pid=1)
  worker.write('sample', state='training', step=3, cost=0.5)
  return worker


def test_before_a_server_is_asked_a_line_says_which(
  set_flags, worker, tmp_path, monkeypatch, capsys
):
  worker.write('end', ok=True, text='')
  logger = Logger()

  def make(logdir, flags):
    assert f'forwarding {logdir} to wandb; Ctrl-C' in capsys.readouterr().err
    return logger

  module = types.SimpleNamespace(check=lambda: None, make=make)
  monkeypatch.setattr(forward.registry, 'load', lambda *_: module)
  monkeypatch.setattr(forward, 'end_when_told', lambda _: None)
  set_flags(f'--logdir={tmp_path}', '--logger=wandb')
  forward.main()
  assert logger.is_good


@pytest.mark.parametrize('ok', [True, False])
def test_a_run_that_has_ended_goes_whole(worker, tmp_path, ok):
  worker.write('end', ok=ok, text='')
  logger = Logger()
  run = watched_run.WatchedRun(str(tmp_path))
  forward.forward(run, lambda: logger, threading.Event())
  [(task, _, step, numbers)] = logger.rows
  assert (task, step, numbers) == ('worker 0', 3, {'cost': 0.5})
  assert logger.is_good == ok


@pytest.mark.parametrize('secs_ahead', [-60, 0, 3600])
def test_of_a_launch_that_begins_anew_nothing_earlier_goes(
  tmp_path, secs_ahead
):
  now = 1e9
  worker = metrics_file.Writer(
    *(str(tmp_path), 'worker 0', 'a'), launch='1', time=now + secs_ahead
  )
  worker.write('sample', state='', step=3, cost=0.5, time=now + secs_ahead)
  launcher = metrics_file.Writer(
    *(str(tmp_path), 'launcher', 'x'), launch='2', time=now, tasks=['worker 0']
  )
  launcher.write('event', event='started', about='worker 0', time=now)
  logger, looks = Logger(), []

  def wait(_):
    looks.append(len(logger.rows))
    if len(looks) > 1:
      launcher.write('end', ok=True, code=0, text='')
      return
    (tmp_path / 'metrics' / 'worker_0').rename(tmp_path / 'aside')
    (tmp_path / 'aside' / metrics_file.NAME).rename(tmp_path / 'earlier')
    anew = metrics_file.Writer(str(tmp_path), 'worker 0', 'b', launch='2')
    anew.write('sample', state='', step=1, cost=0.75)
    anew.write('end', ok=True, text='')

  is_told = types.SimpleNamespace(is_set=lambda: False, wait=wait)
  run = watched_run.WatchedRun(str(tmp_path))
  forward.forward(run, lambda: logger, is_told)
  assert looks[0] == 0
  assert [row[2:] for row in logger.rows] == [(1, {'cost': 0.75})]


def test_who_is_told_ends_after_what_is_there(worker, tmp_path):
  is_told, logger = threading.Event(), Logger()
  is_told.set()
  run = watched_run.WatchedRun(str(tmp_path))
  forward.forward(run, lambda: logger, is_told)
  assert len(logger.rows) == 1


def test_a_logger_is_needed(set_flags, tmp_path):
  set_flags(f'--logdir={tmp_path}')
  with pytest.raises(cli.UsageError, match='--logger is missing: say where'):
    forward.main()


def test_a_folder_without_a_run_is_not_waited_for(set_flags, tmp_path):
  set_flags(f'--logdir={tmp_path}/none', '--logger=mlflow')
  with pytest.raises(cli.RunError, match='none: no such folder'):
    forward.main()


def test_a_second_ctrl_c_ends_it_though_the_logger_hangs():
  program = (
    'import os, signal, threading\n'
    'from distmnist import forward\n'
    'is_told = threading.Event()\n'
    'forward.end_when_told(is_told)\n'
    'for number in signal.SIGTERM, signal.SIGTERM, signal.SIGINT:\n'
    '  os.kill(os.getpid(), number)\n'
    'print(is_told.is_set(), flush=True)\n'
    'os.kill(os.getpid(), signal.SIGINT)\n'
    'print("still here")\n'
  )
  done = subprocess.run(
    [sys.executable, '-c', program], capture_output=True, text=True, cwd=REPO
  )
  assert (done.returncode, done.stdout) == (-signal.SIGINT, 'True\n')
