"""The side of the node. The whole is tested in launchers/command_test.py."""

import json
import os
import signal
import socket
import subprocess
import sys

import psutil
import pytest

from distmnist.common.names import JOB_AGENT
from distmnist.launching.scheduler import job_agent
from tests.support import background
from tests.support.paths import PYTHONPATH


def test_it_is_called_as_the_launcher_calls_it():
  assert job_agent.__name__ == JOB_AGENT


def test_a_job_that_starts_when_the_run_is_over_leaves(
  tmp_path, monkeypatch, capsys
):
  folder = str(tmp_path / 'jobs' / '1')
  monkeypatch.setattr('sys.argv', [JOB_AGENT, folder, 'worker 0'])
  job_agent.run()
  assert capsys.readouterr() == ('worker 0: the run is over\n', '')


@pytest.fixture
def wait(tmp_path, monkeypatch):
  """Yields wait() -> exit code, of worker 0 of 1 ps and 2 workers, alone."""
  folder = tmp_path / 'jobs' / '1'
  folder.mkdir(parents=True)
  request = {'cwd': str(tmp_path), 'num_ps': 1, 'num_worker': 2}
  (folder.parent / 'request.json').write_text(json.dumps(request))
  monkeypatch.chdir(tmp_path)
  monkeypatch.setattr('sys.argv', [JOB_AGENT, str(folder), 'worker 0'])
  monkeypatch.setattr(job_agent, 'TICK_SECS', 0.01)
  signals, other_end = socket.socketpair()  # None comes.
  monkeypatch.setattr(job_agent.signals_lib, 'Reader', lambda *_: signals)

  def wait():
    with pytest.raises(SystemExit) as end:
      job_agent.run()
    return end.value.code

  wait.folder = folder
  with signals, other_end:
    yield wait


def test_a_job_that_is_told_to_leave_leaves_though_others_are_missing(wait):
  (wait.folder / 'worker_0.signal').write_text('2 1')
  assert wait() == 143
  assert (wait.folder / 'worker_0.end').read_text() == '-15'
  assert (wait.folder / 'worker_0.job').read_text() == '1'  # A beat.
  assert (wait.folder / 'worker_0.out').read_text() == (
    'waiting for the jobs of ps 0, worker 1\n'
  )


def test_a_job_whose_launcher_is_gone_leaves(wait, monkeypatch):
  monkeypatch.setattr(job_agent.job_meeting, 'LOST_SECS', 0.0)
  assert wait() == 143
  assert (wait.folder / 'worker_0.end').read_text() == '-15'


def start_task(tmp_path, script):
  """Returns (the agent of a job of one task, the folder of its messages)."""
  folder = tmp_path / 'jobs' / '1'
  folder.mkdir(parents=True)
  request = {
    **{'cwd': str(tmp_path), 'num_ps': 0, 'num_worker': 1, 'grace_secs': 5},
    **{'module': 'fake_train', 'env': {}},
    'train_flags': [f'--do=all:{script}', f'--folder={tmp_path}'],
  }
  (folder.parent / 'request.json').write_text(json.dumps(request))
  agent = subprocess.Popen(
    [sys.executable, '-m', JOB_AGENT, folder, 'worker 0'],
    env={**os.environ, 'PYTHONPATH': PYTHONPATH},
    stdin=subprocess.DEVNULL,
  )
  return agent, folder


@pytest.mark.slow
@pytest.mark.parametrize('script', ['child,exit=3', 'child,kill=9'])
def test_what_a_task_has_started_ends_with_it(tmp_path, script):
  agent, folder = start_task(tmp_path, script)
  with agent:
    agent.wait(60)
  assert (folder / 'worker_0.end').read_text() == script[-1].replace('9', '-9')
  pid = int((tmp_path / 'worker0.child').read_text())
  children = [psutil.Process(pid)] if psutil.pid_exists(pid) else []
  background.assert_gone(children, timeout_secs=30)


@pytest.mark.slow
def test_a_job_whose_session_ends_has_its_task_save(tmp_path):
  """SIGHUP, which a task does not take, reaches it as SIGTERM."""
  agent, folder = start_task(tmp_path, 'leave')
  with agent:
    background.wait_until((tmp_path / 'worker0.ready').exists, agent.poll)
    agent.send_signal(signal.SIGHUP)
    assert agent.wait(60) == 143
  assert (folder / 'worker_0.out').read_text() == 'leaving on 15\n'
