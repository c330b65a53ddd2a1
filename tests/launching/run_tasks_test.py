"""Runs of support/fake_train.py, and first the task that gets the data."""

import os
import socket
import subprocess
import sys

import pytest

from distmnist.launching import jobs, run_tasks
from distmnist.launching.forking import fork_client
from distmnist.launching.run_tasks import PidLines
from tests.support.paths import PYTHONPATH


def launch_with_first(do, folder, monkeypatch):
  """Runs a ps and a worker of fake_train, and what comes before them."""
  monkeypatch.setenv('PYTHONPATH', PYTHONPATH)
  (folder / 'logs').mkdir()
  flags = [f'--do={do}', f'--folder={folder}']
  hosts = ['127.0.0.1:1'], ['127.0.0.1:2']
  tasks = jobs.make_tasks(*hosts, flags, module='fake_train')
  return run_tasks.run(
    tasks,
    fork_client.make_host('fake_train', f'{folder}/logs', os.environ),
    f'{folder}/logs',
    'here',
    first_tasks=[
      jobs.make_check_task(tasks[1]),
      jobs.make_data_task(flags, 'fake_train'),
    ],
  )


@pytest.mark.slow
def test_the_data_is_there_before_the_others_start(tmp_path, monkeypatch):
  do = (
    'data:wait=check.ok,touch=got;check:touch=ok;'
    'worker0:gone=data.got,gone=check.ok,print=hello'
  )
  assert launch_with_first(do, tmp_path, monkeypatch) == 0
  logs = {log.name: log.read_text() for log in (tmp_path / 'logs').iterdir()}
  assert logs == {'ps_0.log': '', 'worker_0.log': 'hello\n'}


@pytest.mark.slow
def test_without_the_data_nobody_starts(tmp_path, monkeypatch, capsys):
  do = 'data:print=no_mirror,exit=1;worker0:touch=on;ps0:touch=on'
  assert launch_with_first(do, tmp_path, monkeypatch) == 1
  assert os.listdir(tmp_path) == ['logs']
  assert capsys.readouterr().err.splitlines()[1:] == [
    'distmnist.launch: the last lines of the task that gets the data:',
    '  | no mirror',
    'distmnist.launch: error: the task that gets the data (127.0.0.1) failed'
    f' first: exit code 1; log: {tmp_path}/logs/data.log',
  ]


@pytest.mark.slow
def test_with_flags_that_do_not_fit_nobody_starts(
  tmp_path, monkeypatch, capsys
):
  do = 'check:error=--a needs --b;worker0:touch=on;ps0:touch=on'
  assert launch_with_first(do, tmp_path, monkeypatch) == 1
  assert os.listdir(tmp_path) == ['logs']
  assert capsys.readouterr().err.splitlines()[1:] == [
    'distmnist.launch: error: --a needs --b'
  ]


@pytest.mark.slow
def test_the_data_has_the_network_that_the_others_have_not(tmp_path):
  code = (
    'import os, sys\n'
    'from distmnist.launching import jobs, network_namespace, run_tasks\n'
    'from distmnist.launching.forking import fork_client\n'
    "flags = ['--do=all:interfaces;data:exit=1']\n"
    "hosts = [['127.0.0.1:1'], ['127.0.0.1:2']]\n"
    'cluster = jobs.make_tasks(*hosts, flags, module="fake_train")\n'
    'data = jobs.make_data_task(flags, "fake_train")\n'
    'namespace = network_namespace.make_namespace()\n'
    'for task in (None, data):\n'
    '  folder = sys.argv[1 + bool(task)]\n'
    '  host = fork_client.make_host(\n'
    '    "fake_train", folder, os.environ, namespace=namespace\n'
    '  )\n'
    '  first = [task] if task else []\n'
    '  run_tasks.run(cluster, host, folder, "here", first_tasks=first)\n'
  )
  for folder in 'ab':
    (tmp_path / folder).mkdir()
  done = subprocess.run(
    [sys.executable, '-c', code, tmp_path / 'a', tmp_path / 'b'],
    env={**os.environ, 'PYTHONPATH': PYTHONPATH},
    capture_output=True,
    text=True,
  )
  if 'cannot create a network namespace' in done.stderr:
    pytest.skip(done.stderr.splitlines()[-1])
  inside, outside = ['lo'], [name for _, name in socket.if_nameindex()]
  logs = {log.name: log.read_text() for log in tmp_path.glob('*/*')}
  assert logs == {
    'ps_0.log': f'interfaces {inside}\n',
    'worker_0.log': f'interfaces {inside}\n',
    'data.log': f'interfaces {outside}\n',
  }


def test_all_are_told_in_one_line_once_all_have_begun(caplog):
  lines = PidLines(['fork server', 'ps 0'])
  lines.note('ps 0', 12, 1)
  lines.note('data', 13, 1)
  assert caplog.messages == []
  lines.note('fork server', 11, 1)
  assert caplog.messages == ['pids on this machine: ps 0 12, fork server 11']


def test_a_restart_has_a_line_of_its_own(caplog):
  lines = PidLines(['ps 0'])
  lines.note('ps 0', 12, 1)
  lines.note('ps 0', 13, 2)
  assert caplog.messages[1:] == ['ps 0 is pid 13 now']


def test_of_many_some_are_told_and_how_to_find_the_others(caplog):
  lines = PidLines(f'worker {i}' for i in range(20))
  for i in range(20):
    lines.note(f'worker {i}', i, 1)
  assert caplog.messages[0].endswith(
    "worker 15 15, 4 more: pgrep -af '^distmnist '"
  )
