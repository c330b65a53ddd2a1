import os
import signal
import socket
import time

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


def test_held_ports_differ_and_nobody_gets_one_by_chance():
  held = processes.hold_ports(20)
  ports = [port.getsockname()[1] for port in held]
  assert len(set(ports)) == 20
  with (
    socket.socket() as other,
    pytest.raises(OSError, match='Address already in use'),
  ):
    other.bind(('127.0.0.1', ports[0]))
  for port in held:
    port.close()


def test_a_held_port_refuses_those_who_come_too_early():
  (held,) = processes.hold_ports(1)
  with held, pytest.raises(ConnectionRefusedError):
    socket.create_connection(('127.0.0.1', held.getsockname()[1]), timeout=5)


def test_servers_come_and_go_on_a_held_port_one_at_a_time():
  (held,) = processes.hold_ports(1)
  address = ('127.0.0.1', held.getsockname()[1])
  with held:
    for _ in range(2):
      # As gRPC does: on all addresses, and with SO_REUSEADDR.
      with socket.create_server(('', address[1])):
        client = socket.create_connection(address, timeout=5)
        with pytest.raises(OSError, match='Address already in use'):
          socket.create_server(('', address[1]))
      client.close()
      with pytest.raises(ConnectionRefusedError):
        socket.create_connection(address, timeout=5)


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


@pytest.mark.slow
@pytest.mark.parametrize(
  ('steady_secs', 'max_secs', 'expected'),
  [(60, 10, [0.1, 0.2, 0.4]), (60, 0.2, [0.1, 0.2, 0.2]), (0, 10, [0.1] * 3)],
)
def test_the_time_to_a_restart_grows_with_each_failure_that_comes_soon(
  tmp_path, env, monkeypatch, steady_secs, max_secs, expected
):
  monkeypatch.setattr(processes, 'STEADY_SECS', steady_secs)
  monkeypatch.setattr(processes, 'MAX_BACKOFF_SECS', max_secs)
  (task,) = make_tasks('worker0:kill=9')
  said = []
  with processes.Processes(
    'fake_train', str(tmp_path), env, max_restarts=3, say=said.append
  ) as group:
    start = time.monotonic()
    group.start(task)
    assert group.wait([task]) == []
    assert time.monotonic() - start >= sum(expected)
    assert group.failure == processes.Failure(task, -9, num_restarts=3)
  assert said == [
    f'worker 0 (127.0.0.1) killed by SIGKILL: restart {i} of 3 in {secs} s'
    for i, secs in enumerate(expected, 1)
  ]


def test_a_restart_has_a_line_of_its_own_in_the_log(tmp_path, env):
  (task,) = make_tasks('worker0@1:write=cut,exit=3;worker0@2:print=whole')
  with processes.Processes(
    'fake_train', str(tmp_path), env, max_restarts=1, say=lambda _: None
  ) as group:
    group.start(task)
    assert group.wait([task]) == []
    assert group.last_lines(task) == ['whole']
    assert group.is_done(task)
    assert group.is_restarted(task)
  log = (tmp_path / 'worker_0.log').read_text()
  assert log == 'cut\n--- restart 1 of 1 ---\nwhole\n'


@pytest.mark.slow
def test_who_waits_for_a_restart_counts_as_running_until_the_stop(
  tmp_path, env, monkeypatch
):
  monkeypatch.setattr(processes, 'MAX_BACKOFF_SECS', 30)
  (task,) = make_tasks('worker0:exit=3')
  with processes.Processes(
    'fake_train', str(tmp_path), env, max_restarts=9, say=lambda _: None
  ) as group:
    group.start(task)
    group._runs[task.name].backoff_secs = 30
    assert group.wait([task], 1.5) == [task]
    assert group.stop() == []
    assert group.wait([task]) == []
    assert group.failure is None


def test_a_task_that_is_discarded_leaves_no_log(tmp_path, env):
  (task,) = make_tasks('worker0:print=hello')
  with processes.Processes('fake_train', str(tmp_path), env) as group:
    group.start(task)
    group.wait([task])
    group.discard(task)
  assert os.listdir(tmp_path) == []


def test_wait_returns_who_still_runs_at_the_deadline(tmp_path, env):
  cluster = make_tasks('worker0:forever', num_workers=2)
  with processes.Processes('fake_train', str(tmp_path), env) as group:
    for task in cluster:
      group.start(task)
    assert group.wait(cluster[1:]) == []
    assert group.wait(cluster, 0.2) == cluster[:1]
    assert group.stop() == []


def test_the_end_of_the_context_is_the_end_of_the_tasks(
  tmp_path, env, monkeypatch
):
  # It may still have to import the module, on a busy machine.
  monkeypatch.setattr(processes.fork_server, 'GRACE_SECS', 60)
  cluster = make_tasks('worker0:forever')
  before = signal.getsignal(signal.SIGINT)
  with processes.Processes('fake_train', str(tmp_path), env) as group:
    group.start(cluster[0])
    server = group._client.server
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
    group._client.server.kill()
    group.wait(cluster)


def test_logs_go_next_to_what_train_writes(tmp_path):
  path = processes.make_logs_dir(None, str(tmp_path / 'run'))
  assert path == str(tmp_path / 'run' / 'logs')
  assert os.path.isdir(path)


def test_without_a_folder_the_logs_go_to_a_new_one(tmp_path, monkeypatch):
  monkeypatch.setattr('tempfile.tempdir', str(tmp_path))
  paths = {processes.make_logs_dir(None, None) for _ in range(2)}
  assert len(paths) == 2
  assert all(os.path.isdir(path) for path in paths)
