import os
import signal
import socket

import pytest

from distmnist import cli, processes, tasks

TESTS = os.path.dirname(os.path.abspath(__file__))


@pytest.fixture
def env():
  return {**os.environ, 'PYTHONPATH': TESTS}


def make_tasks(do, num_ps=0, num_workers=1):
  hosts = [f'127.0.0.1:{1 + i}' for i in range(num_ps + num_workers)]
  return tasks.make_tasks(
    hosts[:num_ps], hosts[num_ps:], [f'--do={do}'], module='fake_train'
  )


def test_held_ports_differ_and_nobody_else_can_bind_one():
  held = processes.hold_ports(20)
  ports = [port.getsockname()[1] for port in held]
  assert len(set(ports)) == 20
  for reuse in (0, 1):
    with socket.socket() as other:
      other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, reuse)
      with pytest.raises(OSError, match='Address already in use'):
        other.bind(('127.0.0.1', ports[0]))
  for port in held:
    port.close()


def test_a_held_port_refuses_those_who_come_too_early():
  (held,) = processes.hold_ports(1)
  with held, pytest.raises(ConnectionRefusedError):
    socket.create_connection(('127.0.0.1', held.getsockname()[1]), timeout=5)


@pytest.mark.parametrize('fork_tasks', [True, False])
def test_the_first_failure_is_remembered_with_its_last_lines(
  tmp_path, env, fork_tasks
):
  (task,) = make_tasks('worker0:count=30,exit=7')
  log = tmp_path / 'worker_0.log'
  log.write_text('from an earlier run\n')
  with processes.Processes(
    'fake_train', str(tmp_path), env, fork_tasks
  ) as group:
    group.start(task)
    assert group.wait([task]) == []
    assert group.failure == processes.Failure(task, 7)
    assert group.failure.cause == 'exit code 7'
    lines = group.last_lines(task)
  assert lines == [f'worker0 line {i}' for i in range(20, 30)]
  assert log.read_text().startswith('from an earlier run\nworker0 line 0\n')
  assert os.listdir(tmp_path) == ['worker_0.log']


def test_lines_of_an_earlier_run_are_not_blamed(tmp_path, env):
  (task,) = make_tasks('worker0:exit=1')
  (tmp_path / 'worker_0.log').write_text('from an earlier run\n')
  with processes.Processes('fake_train', str(tmp_path), env) as group:
    group.start(task)
    group.wait([task])
    assert group.last_lines(task) == []


def test_a_failure_by_a_signal_is_named_and_has_its_code(tmp_path, env):
  (task,) = make_tasks('worker0:kill=9')
  with processes.Processes('fake_train', str(tmp_path), env) as group:
    group.start(task)
    group.wait([task])
    assert group.failure.cause == 'killed by SIGKILL'
    assert group.failure.exit_code == 137


def test_wait_returns_who_still_runs_at_the_deadline(tmp_path, env):
  cluster = make_tasks('worker0:forever', num_workers=2)
  with processes.Processes('fake_train', str(tmp_path), env) as group:
    for task in cluster:
      group.start(task)
    assert group.wait(cluster[1:]) == []
    assert group.wait(cluster, 0.2) == cluster[:1]
    assert group.stop() == []


def test_the_end_of_the_context_is_the_end_of_the_tasks(tmp_path, env):
  cluster = make_tasks('worker0:forever')
  before = signal.getsignal(signal.SIGINT)
  with processes.Processes('fake_train', str(tmp_path), env) as group:
    group.start(cluster[0])
    server = group._server
  assert server.returncode == 0
  assert signal.getsignal(signal.SIGINT) == before


def test_a_stop_during_the_import_does_not_wait_for_it(tmp_path, env):
  (tmp_path / 'slow_module.py').write_text('import time; time.sleep(60)')
  env['PYTHONPATH'] = str(tmp_path)
  cluster = make_tasks('')
  with processes.Processes('slow_module', str(tmp_path), env) as group:
    group.start(cluster[0])
    assert group.wait(cluster, 0.1) == cluster
    assert group.stop() == []


def test_a_module_that_cannot_be_imported_is_one_error(tmp_path, env):
  (tmp_path / 'broken_module.py').write_text('import no_such_thing')
  env['PYTHONPATH'] = str(tmp_path)
  cluster = make_tasks('')
  with (
    pytest.raises(
      cli.RunError,
      match="cannot import broken_module: .*No module named 'no_such_thing'",
    ),
    processes.Processes('broken_module', str(tmp_path), env) as group,
  ):
    group.start(cluster[0])
    group.wait(cluster)
  assert 'Traceback' in (tmp_path / 'fork_server.log').read_text()


def test_a_server_that_dies_takes_its_tasks_along_and_is_named(tmp_path, env):
  cluster = make_tasks('worker0:deaf,forever')
  with (
    pytest.raises(cli.RunError, match='the fork server has died'),
    processes.Processes('fake_train', str(tmp_path), env) as group,
  ):
    group.start(cluster[0])
    group.wait(cluster, 0.5)
    group._server.kill()
    group.wait(cluster)
